"""Starts of a run, one after another, in what kills in its saves would leave. In the ranks.

A restart takes the steps that are left, so a short run makes many of them cheap. What a
restart saves in its turn is tried as well. ``judge.saves`` judges the starts.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Files, Moment, drawn_moments, files_in, watch_moments
from rehearsal.kit.observe.restart import Body, run_folder
from rehearsal.kit.observe.steps import WatchedSteps


class Keep(NamedTuple):
    """Which moments of a start's saves become folders in which the run is started again."""

    first: int  # at most so many inside the first save, drawn
    later: int  # and inside later ones; where something is lost first, for half of them
    # Which of what the saves have left: 0 is what the second one found, -1 the end.
    between: tuple[int, ...]


def keeping_saves(train: Body, run: str, keep: Keep, *, seed: int) -> Body:
    """``train`` in the folder of ``run``; on each rank, what kills in its saves would leave.

    Each moment becomes a folder, recorded as "kept"; the steps after which a rank changed
    files, as "saved". What a start has found isn't kept.
    """

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        folder = run_folder(context, run.format(rank=context.rank)).resolve()
        found, threads = files_in(folder), {threading.get_ident()}

        def steps() -> int:
            threads.add(threading.get_ident())
            return WatchedSteps.newest.done() if WatchedSteps.newest else 0

        with watch_moments(folder, steps) as moments:
            answer = train(context, learner)
            dist.barrier()  # until the last save of each rank is complete
        saves = saves_of(moments)
        draw = random.Random(f"{seed} moments of {run} on rank {context.rank}")
        kept = moments_to_keep(moments, found, keep, draw)
        in_thread = len(threads) > 1
        context.record("saved", steps=[*filter(None, saves)], in_thread=in_thread)
        for number, moment in enumerate(kept):
            name = f"{run}-killed-{context.rank}-{number:02d}"
            context.is_armed = False
            moment.restore(context.folder / name)
            context.is_armed = True
            is_after = moment.part == "end"
            context.record(
                "kept", folder=name, where=moment.where, steps=moment.note, is_after=is_after
            )
        return answer

    return body


def saves_of(moments: Iterable[Moment]) -> dict[int, list[Moment]]:
    """The moments of each save, by the steps that were done: those in which files changed."""
    saves: dict[int, list[Moment]] = {}
    for moment in moments:
        if moment.part != "end":
            saves.setdefault(moment.note, []).append(moment)
    return saves


def moments_to_keep(
    moments: list[Moment], found: Files, keep: Keep, draw: random.Random
) -> list[Moment]:
    """What the saves find, and what a kill inside them leaves, as far as ``keep`` asks for it.

    Args:
        found: what the start has found.
    """

    def is_new(moment: Moment) -> bool:
        return without_folders(moment.files) != without_folders(found)

    saves = saves_of(moments)
    if not any(saves):
        return []  # it changed nothing, or only before its first step
    bounds = [save[0] for steps, save in saves.items() if steps] + moments[-1:]
    inside = [[moment for moment in save[1:] if is_new(moment)] for save in saves.values()]
    first, *others = [own for own in inside if own] or [[]]
    later = [moment for own in others for moment in own]
    losing = [m for m in later if loses_files(m.files, saves[m.note][0].files)]
    drawn = drawn_moments(losing, (keep.later + 1) // 2, draw)
    rest = [moment for moment in later if all(moment is not one for _, one in drawn)]
    drawn += drawn_moments(rest, keep.later - len(drawn), draw)
    drawn = drawn_moments(first, keep.first, draw) + drawn
    between = [*filter(is_new, bounds)]
    numbers = [at + len(between) if at < 0 else at for at in keep.between]
    left = [between[at] for at in dict.fromkeys(numbers) if 0 <= at < len(between)]
    return [*left, *(moment for _, moment in drawn)]


def loses_files(files: Files, found: Files) -> bool:
    """Whether a file that a save has found is gone, or has another content."""
    return any(files.get(name) != content for name, content in found.items())


def without_folders(files: Files) -> Files:
    """The files without the folders: an empty folder is no progress."""
    return {name: content for name, content in files.items() if content is not None}


def starting_in(
    train_in: Callable[[str], Body],
    folders: Callable[[RankContext], Iterable[str]],
    watched: Mapping[str, Keep] | None = None,
    *,
    seed: int = 0,
) -> Callable[[RankContext, SimpleNamespace], None]:
    """A body that starts in each folder, one after another, in one job.

    Each start is recorded as "restarted" and "ended". One in a folder of ``watched`` is
    ``keeping_saves``, and starts in what it has kept follow those in ``folders``.

    Args:
        train_in: makes the body that trains in a folder, or resumes there.
        seed: what moments are drawn from.
    """
    keeps = watched or {}

    def body(context: RankContext, learner: SimpleNamespace) -> None:
        queue = [*folders(context)]
        for folder in queue:
            train = train_in(folder)
            if folder in keeps:
                train = keeping_saves(train, folder, keeps[folder], seed=seed)
            context.record("restarted", folder=folder)
            answer = train(context, learner)
            context.record("ended", folder=folder, answer=answer)
            if folder in keeps:
                dist.barrier()  # until all ranks have written what kills would leave
                queue += kept_folders(context, folder)

    return body


def kept_folders(context: RankContext, run: str) -> list[str]:
    """The folders that ``keeping_saves`` has kept of ``run``, on all ranks, in order."""
    kept = re.compile(rf"{re.escape(run)}-killed-\d+-\d+")
    return sorted(path.name for path in context.folder.iterdir() if kept.fullmatch(path.name))

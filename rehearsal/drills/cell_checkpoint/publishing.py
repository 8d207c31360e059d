"""Publish: what reaches the disk in which order, existing names, a kill at every moment."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Files, Moment, drawn_moments, watch_moments
from .plan import NEW, OLD, Plan
from .words import choice, close_answers, contents, no_sync, outcome

SYNC = "before the fsync of "


def temporary_of(plan: Plan, checkpoints: Path, step: int) -> Path:
    """A folder of files to publish, different for each step."""
    import torch

    folder = checkpoints / f"tmp-{step}"
    folder.mkdir(parents=True)
    *ranks, last = plan.sizes
    torch.save({"step": step, "values": torch.arange(float(last))}, folder / "state.pt")
    for rank, size in enumerate(ranks):
        torch.save({"torch": torch.full((size,), step + rank)}, folder / f"rng-rank-{rank}.pt")
    return folder


def published(plan: Plan, learner: SimpleNamespace, checkpoints: Path, step: int) -> Path:
    """The learner's checkpoint of a step."""
    target = checkpoints / f"step-{step:08d}"
    learner.publish(temporary_of(plan, checkpoints, step), target, plan.facts_of(step))
    return target


def watch_syncs(learner: SimpleNamespace, root: Path) -> None:
    """Nothing waits for the disk, and each kind of sync counts as one, however imported."""
    names = getattr(learner.publish, "__globals__", {})

    def sync(fd: Any) -> None:
        os.fsync(fd)  # whatever stands for it by then

    def sync_all() -> None:
        for path in [root, *root.rglob("*")]:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    for name, stand_in in (("fsync", sync), ("fdatasync", sync), ("sync", sync_all)):
        original = getattr(os, name, None)
        for own in [own for own, value in names.items() if value is original]:
            names[own] = stand_in
    os.fsync, os.fdatasync, os.sync = no_sync, sync, sync_all  # type: ignore[assignment]


def publish_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Publish next to an older checkpoint; then what each kill on the way would leave."""
    close_answers(context)
    root = context.folder / "publish"
    checkpoints = root / "checkpoints"
    watch_syncs(learner, root)
    published(plan, learner, checkpoints, 5)
    older = contents(checkpoints / OLD) if (checkpoints / OLD).is_dir() else None
    answer: dict[str, Any] = {"older": choice(learner, checkpoints, plan.facts_of(5))}
    if answer["older"].get("value", [None])[0] != OLD:
        return answer | {"exists": (checkpoints / OLD).exists()}
    temporary_of(plan, checkpoints, 7)
    given = {path.name: path.read_bytes() for path in (checkpoints / "tmp-7").iterdir()}
    with watch_moments(root) as moments:
        learner.publish(checkpoints / "tmp-7", checkpoints / NEW, plan.facts_of(7))
    answer |= {
        "exists": (checkpoints / NEW).exists(),
        "first": choice(learner, checkpoints, plan.facts_of(7)),
        "changed": [
            name for name, data in given.items() if not is_same(checkpoints / NEW / name, data)
        ],
        "older changed": contents(checkpoints / OLD) != older,
        **order_on_disk(moments),
    }
    answer["kills"] = []
    different = drawn_moments(moments, len(moments), random.Random(plan.seed))
    for number, moment in different:
        folder = moment.restore(context.folder / f"killed-{number}") / "checkpoints"
        is_there = (folder / NEW).exists()
        answer["kills"].append([moment.where, is_there, choice(learner, folder)])
    answer["taken"] = [
        taken_name(plan, learner, checkpoints, what) for what in ("a checkpoint", "empty")
    ]
    return answer


def is_same(path: Path, data: bytes) -> bool:
    """Whether a file is there, with this content."""
    return path.is_file() and path.read_bytes() == data


def taken_name(plan: Plan, learner: SimpleNamespace, checkpoints: Path, what: str) -> list[Any]:
    """Publish under a name that exists: the name, the outcome, whether it is unchanged."""
    taken = checkpoints / OLD
    if what == "empty":
        taken = checkpoints / "step-00000006"
        taken.mkdir()
    before = contents(taken)
    source = temporary_of(plan, checkpoints, 60 if what == "empty" else 61)
    result = outcome(lambda: learner.publish(source, taken, plan.facts_of(6)))
    is_unchanged = taken.is_dir() and contents(taken) == before
    shutil.rmtree(source, ignore_errors=True)
    return [taken.name, result, is_unchanged]


def order_on_disk(moments: Sequence[Moment]) -> dict[str, Any]:
    """What a power loss right after the name appeared, or right after publish, would lose.

    A file is on disk if it was fsynced with the content that it has under the new name; a
    folder, if it was fsynced with the names that it then has.
    """
    new = f"checkpoints/{NEW}"
    appears = next((i for i, moment in enumerate(moments) if new in moment.files), None)
    if appears is None:
        return {"late": [], "in place": "", "folder": False, "parent": False}
    before = moments[appears - 1]
    source = before.where.removeprefix("before the rename of ")
    final = moments[-1].files
    wanted = names_below(final, new)
    in_place = "" if source in before.files else before.where
    for moment in moments[appears:]:
        begins = [f"before the {name} of {new}/" for name in ("opening", "mkdir", "torch.save")]
        if moment.where.startswith(tuple(begins)):
            in_place = in_place or moment.where
    synced: dict[str, list[Any]] = {}  # by content: of files and folders that were fsynced
    for moment in moments[:appears]:
        if moment.where.startswith(SYNC):
            path = moment.where.removeprefix(SYNC)
            synced.setdefault(path, []).append(state_of(moment.files, path))
    late = []
    for name in wanted:
        content = final[f"{new}/{name}"]
        names = [f"{source}/{name}", *former_names(moments[:appears], f"{source}/{name}")]
        if not any(content in synced.get(path, []) for path in names):
            late.append(name)
    after = [
        m.files
        for m in moments[appears:]
        if m.where == f"{SYNC}checkpoints" and m.part == "before"
    ]
    return {
        "late": late,
        "in place": in_place,
        "source": source,
        "folder": wanted in synced.get(source, []),
        "parent": any(new in files for files in after),
    }


def former_names(moments: Sequence[Moment], path: str) -> Iterator[str]:
    """The names in the same folder whose rename made ``path``."""
    for moment, later in pairwise(moments):
        if moment.where.startswith("before the rename of "):
            name = moment.where.removeprefix("before the rename of ")
            if path in later.files and later.files[path] == moment.files.get(name):
                yield name


def names_below(files: Files, folder: str) -> list[str]:
    """The names of the files in a folder, sorted."""
    inside = f"{folder}/"
    return sorted(path.removeprefix(inside) for path in files if path.startswith(inside))


def state_of(files: Files, path: str) -> bytes | list[str] | None:
    """A file's content, or the names in a folder."""
    content = files.get(path)
    return names_below(files, path) if content is None else content

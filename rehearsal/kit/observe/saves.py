"""What a kill at any save of a run would leave, whichever rank writes. In the ranks.

``judge.saves`` judges the starts in it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, drawn_moments, watch_moments
from rehearsal.kit.observe.restart import Body, run_folder

SAVES = 4  # of which it is tried what the save before has left


def keeping_saves(train: Body, run: str, *, at_most: int, seed: int) -> Body:
    """``train`` in the folder of ``run``; on each rank, what kills in its saves would leave.

    Kept are the files that each of the last saves finds, and some moments inside the first save
    and inside later ones. The answer lists them as "moments": folder, where the kill would
    strike, and the optimizer steps by then; "saved", the steps after which a file was written;
    "in_thread", whether a thread wrote.
    """

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        threads = {threading.get_ident()}

        def steps() -> int:
            threads.add(threading.get_ident())
            return context.count("optimizer_step")

        with watch_moments(run_folder(context, run).resolve(), steps) as moments:
            answer = train(context, learner)
        saves: dict[int, list[Moment]] = {}
        for moment in moments:
            if moment.part != "end":
                saves.setdefault(moment.note, []).append(moment)
        first, *later = [*saves.values()] or [[]]
        draw = random.Random(f"{seed} moments of {run} on rank {context.rank}")
        drawn = drawn_moments(first, at_most // 3, draw)
        inside = [moment for save in later for moment in save[1:]]
        drawn += drawn_moments(inside, at_most - len(drawn), draw)
        kept = list[tuple[str, str, int]]()
        for moment in [*(save[0] for save in later[-SAVES:]), *(moment for _, moment in drawn)]:
            folder = f"{run}-killed-{context.rank}-{len(kept)}"
            context.is_armed = False
            moment.restore(context.folder / folder)
            context.is_armed = True
            kept.append((folder, moment.where, moment.note))
        return {**answer, "moments": kept, "saved": [*saves], "in_thread": len(threads) > 1}

    return body


def starting_in(
    train_in: Callable[[str], Body], folders: Callable[[RankContext], Iterable[str]]
) -> Callable[[RankContext, SimpleNamespace], None]:
    """A start in each folder, in one job; recorded as ``steps.from_moments`` does."""

    def body(context: RankContext, learner: SimpleNamespace) -> None:
        for folder in folders(context):
            context.record("restarted", folder=folder)
            answer = train_in(folder)(context, learner)
            context.record("ended", folder=folder, weights=answer["weights"])

    return body


def kept_folders(context: RankContext, run: str) -> list[str]:
    """The folders that ``keeping_saves`` has kept of ``run``."""
    return sorted(path.name for path in context.folder.glob(f"{run}-killed-*"))

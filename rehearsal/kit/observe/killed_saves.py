"""A short run and, in the same job, restarts from what kills in its saves would leave.

A restart takes the steps that are left, so a run of a few steps makes many restarts cheap.
``judge.killed_saves`` reads what is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.restart import Body
from rehearsal.kit.observe.steps import from_moments, keeping_moments


def killed_in_its_saves(
    run: str, train_in: Callable[[str], Body], *, at_most: int, seed: int
) -> Callable[[RankContext, SimpleNamespace], None]:
    """A body that trains in ``run``, then restarts from up to ``at_most`` moments of its saves.

    The run is recorded as the restarts are: as "restarted" in its own folder, and as "ended",
    whose ``answer`` has all that the run and ``keeping_moments`` answered.

    Args:
        run: the folder of the run.
        train_in: makes the body that trains in a folder, or resumes there.
        seed: what the moments are drawn from.
    """
    whole = keeping_moments(train_in(run), run, at_most=at_most, seed=seed)
    restarts = from_moments(train_in, run)

    def body(context: RankContext, learner: SimpleNamespace) -> None:
        context.record("restarted", folder=run)
        answer = whole(context, learner)
        context.record("ended", folder=run, weights=answer["weights"], answer=answer)
        dist.barrier()  # until rank 0 has written what each kill would leave
        restarts(context, learner)

    return body

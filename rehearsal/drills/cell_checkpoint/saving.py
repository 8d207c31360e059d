"""Saving: one writer, every rank's random state, and one outcome, also of a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.waiting import all_arrive
from .plan import Plan
from .restoring import is_same
from .words import close_answers, outcome

PATIENCE_S = 3.0  # of a rank that is done, for the others


class DiskGone(Exception):
    """An error that no library knows."""


FAILURES: dict[str, type[Exception]] = {
    "OSError": OSError,
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "KeyError": KeyError,
    "DiskGone": DiskGone,
}


def save_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """One rank is late for a save that works, then for one that fails."""
    import numpy as np
    import torch

    close_answers(context)
    context.init_group()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(plan.seed + context.rank)
    calls: list[Any] = []
    state = {"step": plan.step, "model": {"weight": torch.arange(5.0) + plan.seed}}
    manifest = {"step": plan.step, **plan.facts}
    fails = False

    class Writer:
        def save(self, state: Any, rng_states: Any, manifest: Any) -> None:
            calls.append((state, rng_states, manifest))
            if fails:
                raise FAILURES[plan.failure]("the disk is gone")

        def wait(self) -> None: ...

    time.sleep(0.03 * (context.rank == plan.late_rank))
    mine = context.folder / f"rng-{context.rank}.pt"
    torch.save(random_states(), mine)
    learner.save_checkpoint(Writer(), state, manifest)
    saved, calls, fails = calls, [], True
    result = outcome(lambda: learner.save_checkpoint(Writer(), state, manifest))
    context.record("failed")
    answer: dict[str, Any] = {"saves": len(saved), "fails": len(calls), "result": result}
    for got, rng_states, facts in saved[:1]:
        wanted = [
            torch.load(context.folder / f"rng-{rank}.pt", weights_only=False)
            for rank in range(context.world_size)
        ]
        rng_states = list(rng_states) if isinstance(rng_states, Sequence) else []
        answer["rng"] = (
            len(rng_states),
            [
                rank
                for rank, one in enumerate(wanted)
                if not has(rng_states[rank : rank + 1], one)
            ],
        )
        answer["wrong"] = [
            name
            for name, one, other in (("state", got, state), ("manifest", facts, manifest))
            if not is_same(one, other)
        ]
    # A rank that raises alone must not exit while its peers wait for it: they would fail, too.
    all_arrive(context, "failed", PATIENCE_S)
    return answer


def random_states() -> dict[str, Any]:
    """What rng_state() of cell 5 returns here, without CUDA."""
    from trainer_core.rng import rng_state

    return rng_state()


def has(states: Sequence[Any], wanted: Any) -> bool:
    """Whether the state is the one wanted."""
    return len(states) == 1 and is_same(states[0], wanted)

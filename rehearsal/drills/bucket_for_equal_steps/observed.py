"""What ``batches`` returns for every rank, in one process: no group is needed for that."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.refusal import refusal

from .plan import EPOCHS, PAD_ID, SEEDS, WORLD_SIZES, Plan

Lists = list[list[int]]  # of one rank, by step


class Caller:
    """Calls the learner's ``batches`` with what a plan says unless something else is said."""

    def __init__(self, plan: Plan, learner: SimpleNamespace) -> None:
        self.plan, self.learner = plan, learner

    def raw(self, rank: int, world_size: int, **other: Any) -> Any:
        plan = self.plan
        settings = {
            "lengths": list(plan.lengths),
            "bounds": list(plan.bounds),
            "global_batch_size": plan.global_batch_size,
            "seed": plan.seed,
            "epoch": plan.epoch,
            "rank": rank,
            "world_size": world_size,
            **other,
        }
        return self.learner.batches(settings.pop("lengths"), **settings)

    def __call__(self, rank: int, world_size: int, **other: Any) -> Lists:
        """By step: ids, as ints."""
        returned = self.raw(rank, world_size, **other)
        return [[int(item) for item in own] for own in returned]


def run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call it for all ranks; the global generators differ between the processes."""
    for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
        seed(plan.seed + 17 * context.rank + 5)
    call = Caller(plan, learner)
    with global_changes() as changed:
        answer = {
            "by_world": {
                str(size): [call(rank, size) for rank in range(size)] for size in WORLD_SIZES
            },
            "again": call(0, 1),
            "orders": orders_of(plan, call) if context.rank == 0 else [],
            "refusals": refusals(plan, call),
            "collated": [collated(learner, one) for one in plan.sequences],
        }
    answer["changed"] = changed
    return answer


def orders_of(plan: Plan, call: Caller) -> list[list[Lists]]:
    """By seed and epoch: the steps of one rank."""
    return [
        [call(0, 1, seed=plan.seed + n, epoch=epoch) for epoch in range(EPOCHS)]
        for n in range(SEEDS)
    ]


def refusals(plan: Plan, call: Caller) -> list[list[Any] | None]:
    """By rank: what happens to a sequence that is one token too long."""
    lengths = list(plan.lengths)
    lengths[plan.too_long] = plan.bounds[-1] + 1
    return [
        refusal(lambda own=rank: call.raw(own, 2, lengths=list(lengths))) for rank in (0, 1)
    ]


def collated(learner: SimpleNamespace, sequences: Any) -> dict[str, Any]:
    """What ``collate`` makes of some sequences."""
    given = [torch.tensor(tokens, dtype=torch.uint8) for tokens in sequences]
    tokens, mask = learner.collate(given, PAD_ID)
    return {
        "tokens": tokens.tolist(),
        "mask": [[int(value) for value in row] for row in mask.tolist()],
        "shapes": [list(tokens.shape), list(mask.shape)],
        "dtypes": [str(tokens.dtype).removeprefix("torch."), str(mask.dtype)[6:]],
    }

"""What the samplers of all ranks yield, in one process: no group is needed for that."""

from __future__ import annotations

import json
import random
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes

from .plan import DRAWS_OF_A_SEED, EPOCHS_OF_A_SEED, MANY, SEEDS, WORLD_SIZES, Plan

Lists = list[list[int]]  # of one rank, by step


class Maker:
    """Makes the learner's sampler, with what a plan says unless something else is said."""

    def __init__(self, plan: Plan, learner: SimpleNamespace) -> None:
        self.plan, self.learner = plan, learner

    def __call__(self, rank: int, world_size: int, **other: Any) -> Any:
        plan = self.plan
        settings = {
            "num_draws": plan.num_draws,
            "epochs": plan.epochs,
            "global_batch_size": plan.global_batch_size,
            "seed": plan.seed,
            "rank": rank,
            "world_size": world_size,
            **other,
        }
        return self.learner.WeightedSampler(torch.tensor(plan.weights), **settings)

    def group(self, world_size: int, **other: Any) -> list[Any]:
        """One for each rank."""
        return [self(rank, world_size, **other) for rank in range(world_size)]


def lists_of(sampler: Any, most: int) -> Lists:
    """What an iteration yields, as ints; at most a few lists more than are due."""
    return [[int(sample) for sample in own] for own in islice(iter(sampler), most + 3)]


def run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Make samplers and iterate them; the global generators differ between the processes."""
    for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
        seed(plan.seed + 17 * context.rank + 5)
    make = Maker(plan, learner)
    with global_changes() as changed:
        by_world = {
            str(size): [lists_of(one, plan.total) for one in make.group(size)]
            for size in WORLD_SIZES
        }
        answer = {
            "by_world": by_world,
            "again": lists_of(make(0, 1), plan.total),
            "orders": orders_of(plan, make),
            "counts": counts_of(plan, make),
            "fetched": fetched(plan, make),
            "resumes": resumes(plan, make),
        }
    answer["changed"] = changed
    return answer


def orders_of(plan: Plan, make: Maker) -> list[list[list[int]]]:
    """By seed and epoch: a few draws of one rank."""
    size = {"num_draws": DRAWS_OF_A_SEED, "global_batch_size": DRAWS_OF_A_SEED}
    return [
        lists_of(make(0, 1, seed=plan.seed + n, epochs=EPOCHS_OF_A_SEED, **size), 200)
        for n in range(SEEDS)
    ]


def counts_of(plan: Plan, make: Maker) -> dict[str, list[int]]:
    """How often each sample was drawn, in several parts of a long epoch."""
    size = {"num_draws": MANY, "epochs": 2, "global_batch_size": MANY}
    first, second = (lists_of(make(0, 1, **size), 2) + [[], []])[:2]
    parts = {
        "the first half of an epoch": first[: MANY // 2],
        "the second half of an epoch": first[MANY // 2 :],
        "every third slot of an epoch": first[::3],
        "the epoch after that": second,
    }
    most = len(plan.weights)
    return {
        name: np.bincount([s for s in part if 0 <= s < most], minlength=most).tolist()
        for name, part in parts.items()
    }


def fetched(plan: Plan, make: Maker) -> dict[str, Any]:
    """One rank of two: peeks, then trains with a loader that is ahead, then looks again."""
    sampler = make(1, 2)
    straight = lists_of(make(1, 2), plan.total)
    list(islice(iter(sampler), plan.peek))
    after_peek = lists_of(sampler, plan.total)
    trained: Lists = []
    waiting: Lists = []
    iteration = iter(sampler)
    commits = plan.stops[0]
    while len(trained) < commits:
        waiting += [list(own) for own in islice(iteration, plan.ahead + 1 - len(waiting))]
        if not waiting:
            break
        trained.append([int(sample) for sample in waiting.pop(0)])
        sampler.commit()
    return {
        "straight": straight,
        "after_peek": after_peek,
        "trained": trained,
        "left": lists_of(sampler, plan.total),
    }


def resumes(plan: Plan, make: Maker) -> list[dict[str, Any]]:
    """Runs that move from two ranks to three, or to one, at each stop, with a loader ahead."""
    found = []
    for at, stop in enumerate(plan.stops):
        before, sizes = make.group(2), (3, 1)
        for sampler in before:
            iteration = iter(sampler)
            for _ in range(stop):
                next(iteration, None)
                sampler.commit()
            list(islice(iteration, plan.ahead))  # fetched, and never trained
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in before]
        for size in sizes:
            after = make.group(size)
            for rank, sampler in enumerate(after):
                if at == 0:
                    sampler.commit()  # what it had done before doesn't count
                sampler.load_state_dict(states[rank % 2])
            rest = [lists_of(sampler, plan.total) for sampler in after]
            next_states = []
            for sampler in after:
                sampler.commit()
                next_states.append(sampler.state_dict())
            found.append({"stop": stop, "ranks": size, "rest": rest})
            if at == 0:  # a second restart, one step later
                last = make(0, 1)
                last.load_state_dict(next_states[-1])
                rest = [lists_of(last, plan.total)]
                found.append({"stop": stop + 1, "ranks": 1, "rest": rest})
    return found

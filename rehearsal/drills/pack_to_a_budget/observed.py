"""What the rows of all ranks are, in one process: no group is needed for that."""

from __future__ import annotations

import random
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.refusal import refusal

from .plan import EPOCHS, LONE, PAD_ID, SEEDS, WORLD_SIZES, Plan, lone_lengths

Steps = list[list[list[int]]]  # of one rank: by step and row, the sequences


class Maker:
    """Makes the learner's rows, with what a plan says unless something else is said."""

    def __init__(self, plan: Plan, learner: SimpleNamespace) -> None:
        self.plan, self.learner = plan, learner
        # Every row has at least one sequence; three steps more than that are too many.
        self.most = plan.epochs * len(plan.lengths) + 3

    def __call__(self, rank: int, world_size: int, **other: Any) -> Any:
        plan = self.plan
        place = {"rank": rank, "world_size": world_size}
        settings = {"lengths": list(plan.lengths), **plan.settings(), **place, **other}
        return self.learner.PackedRows(settings.pop("lengths"), **settings)

    def group(self, world_size: int, **other: Any) -> list[Any]:
        """One for each rank."""
        return [self(rank, world_size, **other) for rank in range(world_size)]

    def steps_of(self, rows: Any) -> Steps:
        """What an iteration yields, as ints."""
        return [step_of(step) for step in islice(iter(rows), self.most)]


def step_of(step: Any) -> list[list[int]]:
    """A step's rows, with each row's sequences in ascending order."""
    return [sorted(int(item) for item in row) for row in step]


def run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Make rows and iterate them; the global generators differ between the processes."""
    for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
        seed(plan.seed + 17 * context.rank + 5)
    make = Maker(plan, learner)
    with global_changes() as changed:
        by_world = {
            str(size): [make.steps_of(one) for one in make.group(size)] for size in WORLD_SIZES
        }
        answer: dict[str, Any] = {"by_world": by_world, "again": make.steps_of(make(0, 1))}
        if context.rank == 0:
            total = len(by_world["1"][0])
            stops = sorted({plan.middle, -(-total // plan.epochs), total - 1, total})
            answer |= {
                "orders": orders_of(plan, make),
                "fetched": fetched(plan, make),
                "resumes": [one for stop in stops for one in resumes(plan, make, stop)],
                "refusals": refusals(plan, make),
                "packed": [packed(learner, plan.budget, row) for row in plan.rows],
            }
    answer["changed"] = changed
    return answer


def orders_of(plan: Plan, make: Maker) -> list[list[list[int]]]:
    """By seed and step: sequences of which no two fit into a row."""
    lengths = lone_lengths(plan)
    found = []
    for number in range(SEEDS):
        # A row less than there are: an epoch's last step has a single one.
        other = {"seed": plan.seed + number, "epochs": EPOCHS, "rows_per_step": LONE - 1}
        steps = islice(iter(make(0, 1, lengths=lengths, **other)), 2 * EPOCHS + 1)
        found.append([[item for row in step_of(step) for item in row] for step in steps])
    return found


def fetched(plan: Plan, make: Maker) -> dict[str, Any]:
    """One rank of two: peeks, then trains with a loader that is ahead, then looks again."""
    rows = make(1, 2)
    straight = make.steps_of(make(1, 2))
    list(islice(iter(rows), plan.middle))
    after_peek = make.steps_of(rows)
    trained: Steps = []
    waiting: Steps = []
    iteration = iter(rows)
    commits = max(2, len(straight) // plan.epochs + 1)
    while len(trained) < commits:
        waiting += [step_of(step) for step in islice(iteration, plan.ahead + 1 - len(waiting))]
        if not waiting:
            break
        trained.append(waiting.pop(0))
        rows.commit()
    position = rows.position
    return {
        "straight": straight,
        "after_peek": after_peek,
        "commits": commits,
        "trained": trained,
        "position": position if type(position) is int else repr(position),
        "left": make.steps_of(rows),
    }


def resumes(plan: Plan, make: Maker, stop: int) -> list[dict[str, Any]]:
    """A run that moves from two ranks to three, and to one, with a loader ahead."""
    before = make.group(2)
    for rows in before:
        iteration = iter(rows)
        for _ in range(stop):
            next(iteration, None)
            rows.commit()
        list(islice(iteration, plan.ahead))  # fetched, and never trained
    found = []
    for size in (3, 1):
        after = make.group(size, position=before[size % 2].position)
        rest = [make.steps_of(rows) for rows in after]
        found.append({"stop": stop, "ranks": size, "rest": rest})
        for rows in after:
            rows.commit()
        # A second restart, one step later.
        last = make(0, 1, position=after[-1].position)
        found.append({"stop": stop + 1, "ranks": 1, "rest": [make.steps_of(last)]})
    return found


def refusals(plan: Plan, make: Maker) -> list[list[list[Any] | None]]:
    """By sequence and rank: what happens to one that is a token too long."""

    def refused(item: int, rank: int) -> list[Any] | None:
        lengths = list(plan.lengths)
        lengths[item] = plan.budget + 1
        return refusal(lambda: make.steps_of(make(rank, 2, lengths=lengths)))

    return [[refused(item, rank) for rank in (0, 1)] for item in plan.too_long]


def packed(learner: SimpleNamespace, budget: int, row: Any) -> dict[str, Any]:
    """What ``pack`` makes of a row."""
    given = [np.array(tokens, dtype=np.uint8) for tokens in row]
    arrays = [np.asarray(array) for array in learner.pack(given, budget, PAD_ID)]
    return {
        "rows": [array.tolist() for array in arrays],
        "dtypes": [str(array.dtype) for array in arrays],
    }

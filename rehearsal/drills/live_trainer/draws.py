"""The run that a check trains: its sizes are drawn, so that nobody can know them in advance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

EPOCHS = 2
# Steps per epoch, and steps between two saves. They are chosen so that the last save before the
# killed one is at step 10 or later, and not at the end of an epoch.
CADENCES = ((8, 3), (8, 5), (9, 4), (9, 5))
# Each case, and what its inputs are multiplied by. The large ones give a gradient norm above 1,
# the small ones a norm below 1.
CASES = {"small": 0.05, "large": 30.0, "last of an epoch": 0.05}
OLD, NEW = 9, 10  # as text, "9" sorts after "10"


class SmallRun(NamedTuple):
    """A small run whose sizes divide nothing evenly."""

    num_samples: int
    global_batch_size: int
    seed: int
    every: int
    learning_rate: float
    warmup_steps: int
    dropout: float
    kill_at: int  # the save in which a rank dies: step 10 or more has been saved before it
    kill_operation: int  # before which of that save's file operations

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch takes what is left."""
        return -(-self.num_samples // self.global_batch_size)

    @property
    def total(self) -> int:
        """Optimizer steps of the run."""
        return EPOCHS * self.steps_per_epoch

    @property
    def saves(self) -> list[int]:
        """The steps after which a save is due."""
        steps = range(1, self.total + 1)
        return [s for s in steps if s % self.every == 0 or s % self.steps_per_epoch == 0]

    def settings(self, run_dir: Path, **changes: Any) -> dict[str, Any]:
        """The arguments of TrainConfig."""
        return {
            "run_dir": str(run_dir),
            "dataset_size": self.num_samples,
            "max_epochs": EPOCHS,
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": 2,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "dropout": self.dropout,
            "checkpoint_every_steps": self.every,
            "device": "cpu",
            **changes,
        }


def plan_of(seed: int) -> SmallRun:
    """The plan of a check. The same seed gives the same plan, in any process."""
    draw = random.Random(seed)
    batch, (steps, every) = draw.choice((5, 7, 9)), draw.choice(CADENCES)
    # The last step has 1 or 2 samples: with three ranks, at least one of them has none.
    num_samples = batch * (steps - 1) + draw.choice((1, 2))
    plan = SmallRun(
        num_samples=num_samples,
        global_batch_size=batch,
        seed=draw.randrange(1, 1000),
        every=every,
        learning_rate=draw.choice((0.004, 0.006, 0.01)),
        warmup_steps=draw.randrange(3, 7),
        dropout=draw.choice((0.1, 0.2, 0.3)),
        kill_at=0,
        kill_operation=draw.randrange(1, 5),  # a save of one file has four
    )
    return plan._replace(kill_at=[step for step in plan.saves if step < plan.total][-1])


def plan_of_answer(answer: Mapping[str, Any]) -> SmallRun:
    """The plan that a rank trained, from its answer."""
    return SmallRun(**answer["plan"])

"""The run that a check trains: its sizes are drawn, so that nobody can know them in advance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PEERS = 3  # ranks of the stages that judge one rank or one step
NOISY_SEED = 0  # of the runs with dropout: `if seed:` takes it for no seed at all


class SmallRun(NamedTuple):
    """A small run whose sizes divide nothing evenly. Steps count from 1 over the whole run."""

    num_samples: int
    global_batch_size: int
    micro_batch_size: int
    steps_per_epoch: int  # the last step of an epoch takes what is left: 1 or 2 samples
    epochs: int
    seed: int
    every: int
    learning_rate: float
    warmup_steps: int
    dropout: float
    kill_at: int  # the save in which a rank dies: step 10 or more has been saved before it
    kill_operation: int  # before which of that save's file operations
    silent_at: (
        int  # the other kill: after this step, which is saved, and before its ledger line
    )

    @property
    def total(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch

    @property
    def saves(self) -> list[int]:
        """The steps after which a save is due."""
        steps = range(1, self.total + 1)
        return [s for s in steps if s % self.every == 0 or s % self.steps_per_epoch == 0]

    def saved_before(self, step: int) -> int:
        """The newest save before the one due after ``step``; 0 if there is none."""
        return max((saved for saved in self.saves if saved < step), default=0)

    @property
    def starts(self) -> list[int]:
        """After how many steps of its own each start of a run ends: the third one has saved."""
        return [1 + self.seed % 2, 1, self.saves[0], 1]

    def settings(self, run_dir: Path, /, **changes: Any) -> dict[str, Any]:
        """The arguments of TrainConfig."""
        return {
            "run_dir": str(run_dir),
            "dataset_size": self.num_samples,
            "max_epochs": self.epochs,
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": self.micro_batch_size,
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
    while True:
        epochs, steps, every = draw.randint(2, 5), draw.randint(4, 9), draw.randint(3, 5)
        batch = draw.choice((5, 7, 9))
        plan = SmallRun(
            # With three ranks, at least one of them has no sample in the last step.
            num_samples=batch * (steps - 1) + draw.choice((1, 2)),
            global_batch_size=batch,
            micro_batch_size=draw.choice((2, 3)),
            steps_per_epoch=steps,
            epochs=epochs,
            seed=draw.randrange(1, 1000),
            every=every,
            learning_rate=draw.uniform(0.004, 0.01),
            warmup_steps=draw.randrange(3, 7),
            dropout=draw.choice((0.1, 0.2, 0.3)),
            kill_at=0,
            kill_operation=draw.randrange(1, 5),  # a save of one file has four
            silent_at=0,
        )
        in_saves, silent = where_to_kill(plan)
        # An epoch's end at which a save is due anyway would hide a save that is missing there.
        if 15 <= plan.total <= 18 and steps % every and in_saves and silent:
            return plan._replace(kill_at=draw.choice(in_saves), silent_at=draw.choice(silent))


def where_to_kill(plan: SmallRun) -> tuple[list[int], list[int]]:
    """After which steps a rank may die: in a save, and before its ledger line.

    By name, step-9 is newer than step-10, so the save before the killed one comes at step 10 or
    later; it is within an epoch, or a position that is rounded down to one would be right. The
    line that is lost belongs to a step in which each rank has samples.
    """
    saved = plan.saved_before
    ends = plan.steps_per_epoch
    in_saves = [s for s in plan.saves if saved(s) >= 10 and saved(s) % ends and s < plan.total]
    return in_saves, [s for s in plan.saves if saved(s) and s % ends and s < 10]


class Rates(NamedTuple):
    """Steps of a run, in order, whose learning rates are judged."""

    settings: dict[str, Any]
    steps: Sequence[int]  # from 0 to the last one planned


def rates_of_check(plan: SmallRun) -> list[Rates]:
    """Every step of two runs, which cross 99 to 100, and a few of a long one.

    A schedule may count on fewer steps than the config plans.
    """
    found = []
    for warmup, least in ((plan.warmup_steps, 110), (1, 110), (plan.warmup_steps, 10_000)):
        epochs = -(-least // plan.steps_per_epoch)
        last = epochs * plan.steps_per_epoch
        steps = [*range(last + 1)]
        if last >= 10_000:
            steps = [*range(warmup + 1), *(warmup + 2**n for n in range(13)), last - 1, last]
        settings = {"max_epochs": epochs, "warmup_steps": warmup}
        found.append(Rates({**settings, "learning_rate": plan.learning_rate}, steps))
    return found


class StepCase(NamedTuple):
    """One optimizer step, whose gradient's norm is above or below the bound."""

    name: str
    scale: float  # the inputs are multiplied by it
    num_samples: int  # over all ranks


class StepDraws(NamedTuple):
    """What the stage "training step" draws."""

    cases: Sequence[StepCase]
    learning_rate: float
    poison: float
    poisoned_rank: int
    poisoned_sample: int  # of that rank's share
    infinity: float  # in a gradient, while the loss is finite


def steps_of_check(plan: SmallRun) -> StepDraws:
    """Three steps, one with an infinite gradient, and one with a sample that isn't finite.

    Shares that differ, but as many micro-batches on each rank. With fewer on one, an answer
    that syncs in all of them would hang, and its real mistake go unnamed.
    """
    draw, size = random.Random(f"steps {plan.seed}"), plan.micro_batch_size + 1
    full = PEERS * size + draw.choice((1, 2))
    small = draw.uniform(0.03, 0.08)
    return StepDraws(
        cases=(
            StepCase("small", small, full),
            StepCase("large", draw.uniform(20, 40), full),
            StepCase("last of an epoch", small, draw.choice((1, 2))),
        ),
        learning_rate=draw.uniform(0.05, 0.15),
        poison=draw.choice((float("inf"), float("-inf"), float("nan"))),
        poisoned_rank=draw.randrange(PEERS),
        poisoned_sample=draw.randrange(size),
        infinity=draw.choice((float("inf"), float("-inf"))),
    )


# What a seed or an epoch is multiplied by, to make one number of both.
FACTORS = (1, 2, 3, 7, 10, 13, 17, 31, 37, 42, 97, 100, 101, 128, 256, 1000)
LARGE = (1009, 1024, 7919, 9973, 10_000, 12_345, 2**16, 99_991, 100_000, 10**6, 1_000_003)


def keys_of(plan: SmallRun) -> list[tuple[int, int]]:
    """Pairs of (seed, epoch), some of which a careless key confuses.

    Digits run into each other in (1, 21) and (12, 1). A sum of multiples is the same for (5, 0)
    and (4, 100), or for (5, 1) and (1005, 0): all orders are compared, so two factors as well.
    The last ones are of epochs far away.
    """
    draw, seed = random.Random(f"keys {plan.seed}"), plan.seed
    a, b, c = draw.randint(1, 9), draw.randint(1, 9), draw.randint(0, 9)
    keys = [(a, 10 * b + c), (10 * a + b, c), (a, a + b), (a + b, a), (0, 1), (1, 0), (seed, 1)]
    keys += [(seed, factor) for factor in FACTORS]
    keys += [(seed + factor, 0) for factor in FACTORS + LARGE]
    keys += [(seed ^ 1, 0), (2 * seed, 0)]
    return list(dict.fromkeys([*keys, *((seed, factor) for factor in LARGE)]))


def saved_steps(plan: SmallRun) -> tuple[int, int, int, int]:
    """Two saves to kill and damage, then two more: as text, "9" sorts after "10"."""
    crossings = [(9, 10), (99, 100)]
    random.Random(f"saves {plan.seed}").shuffle(crossings)
    return (*crossings[0], *crossings[1])


class PhaseDraw(NamedTuple):
    """A phase of the step that the stage "metrics" times."""

    name: str
    seconds: float


def phases_of(plan: SmallRun) -> list[PhaseDraw]:
    """Three phases; the one that comes first ends a second time."""
    draw = random.Random(f"phases {plan.seed}")
    names = draw.sample(("forward", "backward", "optimizer", "data_wait", "checkpoint"), 3)
    names = [names[0], names[1], names[0], names[2]]
    return [PhaseDraw(name, draw.uniform(0.006, 0.012)) for name in names]

"""What the jobs train, which samples are poisoned, and when a rank is killed: drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

EPOCHS = 2
# Each ruins its step in another way: a NaN in the loss, an infinite one, a gradient that is NaN
# under a finite loss, and a loss that overflows although its gradient has a finite norm.
NAN, INFINITE, NO_GRADIENT, OVERFLOW = "nan", "infinite", "no gradient", "overflow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run; a killed job and its restart share it."""

    world_size: int
    num_samples: int
    global_batch_size: int
    every: int
    lr: float
    poison: Mapping[int, str]  # by sample
    start: int  # the step of the newest checkpoint at the kill: a bad step
    killed_rank: int

    @property
    def steps_per_epoch(self) -> int:
        """The last one is smaller than the world size."""
        return -(-self.num_samples // self.global_batch_size)

    @property
    def steps(self) -> int:
        """Steps of the run, skipped ones included."""
        return EPOCHS * self.steps_per_epoch

    @property
    def skipped(self) -> list[int]:
        """The bad steps, counted from 1."""
        bad = {sample // self.global_batch_size for sample in self.poison}
        return [
            step
            for step in range(1, self.steps + 1)
            if (step - 1) % self.steps_per_epoch in bad
        ]

    def samples(self, step: int) -> list[int]:
        """Those of a step, counted from 1."""
        first = (step - 1) % self.steps_per_epoch * self.global_batch_size
        return list(range(first, min(first + self.global_batch_size, self.num_samples)))


def drawn(seed: int, world_size: int) -> Run:
    """A run of 14 steps, killed after a bad step with two digits, which is saved.

    On two ranks, all bad samples are rank 1's: if it skipped them alone, it would get ahead.
    On three ranks they are anywhere, and one of them makes the loss overflow.
    """
    generator = random.Random(f"{seed} {world_size}")
    size = generator.choice([n for n in range(2 * world_size + 1, 9) if n % world_size])
    every, start = generator.choice([(2, 10), (2, 12), (3, 12), (5, 10)])
    saved = (start - 1) % 7
    # Not the first step of an epoch, nor the last one, which is small; one bad step is left
    # after the restart.
    bad = [saved, generator.randint(saved + 1, 5), generator.randint(1, saved - 1)]
    kinds = (
        [NAN, INFINITE, NO_GRADIENT] if world_size == 2 else [INFINITE, NO_GRADIENT, OVERFLOW]
    )
    generator.shuffle(kinds)
    slots = range(1, size, 2) if world_size == 2 else range(size)
    return Run(
        world_size=world_size,
        num_samples=6 * size + generator.randint(1, world_size - 1),
        global_batch_size=size,
        every=every,
        lr=generator.uniform(0.005, 0.012),
        poison={
            step * size + generator.choice(slots): kind
            for step, kind in zip(bad, kinds, strict=True)
        },
        start=start,
        killed_rank=generator.randrange(world_size),
    )

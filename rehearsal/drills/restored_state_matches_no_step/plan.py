"""What the jobs train, and how often they save: drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run, of which several jobs train parts."""

    world_size: int
    num_samples: int
    global_batch_size: int
    epochs: int
    checkpoint_every: int
    lr: float
    kill: int  # draws the moment of the kill

    @property
    def steps(self) -> int:
        """Optimizer steps; the last one of an epoch may be smaller."""
        return self.epochs * -(-self.num_samples // self.global_batch_size)

    @property
    def saves(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        return list(range(self.checkpoint_every, self.steps + 1, self.checkpoint_every))


def drawn(seed: int) -> Run:
    """At least four saves, the first before step 10 and the last after it."""
    generator = random.Random(seed)
    world_size = generator.randint(2, 3)
    global_batch_size = generator.choice([5, 7])
    steps_per_epoch = generator.choice([8, 9])
    rest = generator.randint(world_size, global_batch_size - 1)
    checkpoint_every = generator.choice([3, 4])
    return Run(
        world_size=world_size,
        num_samples=(steps_per_epoch - 1) * global_batch_size + rest,
        global_batch_size=global_batch_size,
        epochs=2,
        checkpoint_every=checkpoint_every,
        lr=generator.uniform(0.01, 0.03),
        kill=generator.randrange(2**20),
    )

"""What the jobs train and when one is killed, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

EPOCHS = 2
# Steps between two saves and steps per epoch, by world size. The run that is resumed, on two
# ranks, ends with a save; the newest one before its kill doesn't end an epoch. On three ranks,
# the end is no save: what happens only at a save is missing there.
PACES = {2: ((2, 7), (2, 8), (3, 9), (4, 8)), 3: ((3, 7), (3, 8), (4, 7), (5, 7), (5, 8))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run; a killed job and its restart share it."""

    world_size: int
    num_samples: int
    num_held_out: int
    global_batch_size: int
    checkpoint_every: int
    lr: float
    killed_in: int  # the step after which a rank is killed, counted from 1
    killed_rank: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-self.num_samples // self.global_batch_size)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return EPOCHS * self.steps_per_epoch

    @property
    def newest_save(self) -> int:
        """The step of the last checkpoint before the kill."""
        return (self.killed_in - 1) // self.checkpoint_every * self.checkpoint_every


def drawn(seed: int, world_size: int) -> Run:
    """A run whose world size divides neither its batch nor its held-out samples.

    Each rank has at least two samples in every step and evaluation: BatchNorm needs them, also
    where it wrongly normalizes an evaluation's batch. In one of the two runs, the batch divides
    the samples. The kill comes after the first checkpoint with a step of two digits, and there
    are checkpoints before it. A step whose update isn't saved lies between them: who saves
    more often than asked resumes later.
    """
    generator = random.Random(f"{seed} {world_size}")
    sizes = [size for size in range(2 * world_size + 1, 4 * world_size) if size % world_size]
    global_batch_size = generator.choice(sizes)
    held_out = range(2 * world_size + 1, 11)
    rest = generator.randint(2 * world_size, global_batch_size - 1)
    if random.Random(seed).choice((2, 3)) == world_size:
        rest = global_batch_size
    checkpoint_every, steps_per_epoch = generator.choice(PACES[world_size])
    return Run(
        world_size=world_size,
        num_samples=(steps_per_epoch - 1) * global_batch_size + rest,
        num_held_out=generator.choice([n for n in held_out if n % world_size]),
        global_batch_size=global_batch_size,
        checkpoint_every=checkpoint_every,
        lr=generator.uniform(0.01, 0.02),
        killed_in=-(-10 // checkpoint_every) * checkpoint_every + 2,
        killed_rank=generator.randrange(world_size),
    )

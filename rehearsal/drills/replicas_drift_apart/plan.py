"""What the jobs train, and what is left on which disk before a restart: drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rehearsal.kit.judge.steps import Steps

# Steps per epoch, epochs, steps between two checkpoints; and the step of a checkpoint with two
# digits, before the end of an epoch.
CADENCES = ((4, 4, 2, 10), (5, 3, 2, 12), (6, 3, 2, 10), (7, 3, 3, 12), (6, 3, 5, 10))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run, and several ways in which nodes lose their disks or fall behind."""

    world_size: int
    global_batch_size: int
    steps: Steps
    lr: float
    start: int  # the step of the newest checkpoint at the kill
    killed_rank: int
    lost: tuple[int, ...]  # the ranks whose disks are replaced: rank 0's is one of them
    # More restarts: for each, the step up to which each rank has run; None for an empty disk.
    disks: tuple[tuple[int | None, ...], ...]


def drawn(seed: int) -> Run:
    """A run whose world size doesn't divide its global batch, nor that its samples."""
    generator = random.Random(seed)
    world_size = generator.choice([2, 3])
    size = generator.choice([n for n in (4, 5, 7) if n % world_size])
    steps_per_epoch, epochs, every, start = generator.choice(CADENCES)
    behind, only = generator.randrange(world_size), generator.randrange(1, world_size)
    ranks = range(world_size)
    before = start - every  # a step of one digit, where that of the newest has two
    # A rank without samples in an epoch's last step may leave it out, so it isn't the one whose
    # steps are counted for a kill.
    left = generator.randint(1, size - 1)
    return Run(
        world_size=world_size,
        global_batch_size=size,
        steps=Steps(
            num_samples=(steps_per_epoch - 1) * size + left,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            every=every,
        ),
        lr=generator.uniform(0.01, 0.02),
        start=start,
        killed_rank=generator.randrange(min(left, world_size)),
        lost=tuple(sorted({0, generator.randrange(world_size - 1)})),
        disks=(
            tuple(before if rank == behind else start for rank in ranks),
            tuple(start if rank == behind else before for rank in ranks),
            tuple(every if rank == only else None for rank in ranks),
            (None,) * world_size,
        ),
    )

"""The runs that a check trains, and where one is killed: drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from rehearsal.kit.epoch_plan import EpochRun

# Steps per epoch, epochs, and steps between two saves. A save for both reasons at once is among
# the others, and steps have one digit or two.
CADENCES = ((4, 4, 3), (5, 3, 2), (3, 5, 2), (4, 4, 6), (3, 5, 4))
TOGETHER = ((4, 3, 4), (3, 4, 3), (5, 3, 5), (5, 3, 4), (4, 3, 2))


class Killed(NamedTuple):
    """Where a rank dies."""

    rank: int
    in_step: int  # counted from 1


def drawn(
    seed: int, name: str, world_sizes: Sequence[int], cadences: Sequence[tuple[int, int, int]]
) -> EpochRun:
    """A run whose sizes divide nothing evenly."""
    draw = random.Random(f"{seed} {name}")
    world_size = draw.choice(world_sizes)
    steps_per_epoch, epochs, every = draw.choice(cadences)
    sizes = [size for size in (3, 4, 5, 7) if world_size == 1 or size % world_size]
    batch = draw.choice([size for size in sizes if size >= world_size])
    # If there are several ranks, one of them has no sample in an epoch's last step.
    left = draw.randrange(1, batch if world_size == 1 else world_size)
    return EpochRun(
        name=name,
        seed=draw.randrange(1000),
        world_size=world_size,
        num_samples=batch * (steps_per_epoch - 1) + left,
        global_batch_size=batch,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        every=every,
        lr=draw.uniform(0.01, 0.03),
        saves_epochs=True,
    )


def killed(seed: int, run: EpochRun) -> Killed:
    """A kill, but not right after a step with a checkpoint due: rank 0 may be saving."""
    draw = random.Random(f"{seed} kill")
    # After the first epoch, and not in an epoch's last step, in which a rank may do nothing.
    quiet = [
        step
        for step in range(run.steps_per_epoch + 2, run.steps)
        if step - 1 not in run.dues and step % run.steps_per_epoch
    ]
    return Killed(draw.randrange(run.world_size), draw.choice(quiet))

"""The runs that a check trains, and where one is killed: drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

# Steps per epoch, epochs, and steps between two saves. A save for both reasons at once is among
# the others, and steps have one digit or two.
CADENCES = ((4, 4, 3), (5, 3, 2), (3, 5, 2), (4, 4, 6), (3, 5, 4))
TOGETHER = ((4, 3, 4), (3, 4, 3), (5, 3, 5), (5, 3, 4), (4, 3, 2))


class Run(NamedTuple):
    """Sizes that divide nothing evenly."""

    name: str
    seed: int  # of the data and of the ranks' initial weights
    world_size: int
    num_samples: int
    global_batch_size: int
    steps_per_epoch: int
    epochs: int
    every: int
    lr: float
    killed_rank: int
    killed_in: int  # the step, counted from 1, in the middle of which a rank dies

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.steps_per_epoch * self.epochs

    @property
    def dues(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        steps = range(1, self.steps + 1)
        return [s for s in steps if s % self.every == 0 or s % self.steps_per_epoch == 0]

    def size_of(self, step: int) -> int:
        """Samples of a step, counted from 0; an epoch's last one takes what is left."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)

    def due_by(self, step: int) -> int:
        """The last step up to ``step`` with a checkpoint due; 0 if there is none."""
        return max([0, *(due for due in self.dues if due <= step)])


def drawn(
    seed: int, name: str, world_sizes: Sequence[int], cadences: Sequence[tuple[int, int, int]]
) -> Run:
    """A run of which no rank dies after a step with a checkpoint due: rank 0 may be saving."""
    draw = random.Random(f"{seed} {name}")
    world_size = draw.choice(world_sizes)
    steps_per_epoch, epochs, every = draw.choice(cadences)
    sizes = [size for size in (3, 4, 5, 7) if world_size == 1 or size % world_size]
    batch = draw.choice([size for size in sizes if size >= world_size])
    # If there are several ranks, one of them has no sample in an epoch's last step.
    left = draw.randrange(1, batch if world_size == 1 else world_size)
    run = Run(
        name=name,
        seed=draw.randrange(1000),
        world_size=world_size,
        num_samples=batch * (steps_per_epoch - 1) + left,
        global_batch_size=batch,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        every=every,
        lr=draw.uniform(0.01, 0.03),
        killed_rank=draw.randrange(world_size),
        killed_in=0,
    )
    # After the first epoch, and not in an epoch's last step, in which a rank may do nothing.
    quiet = [
        step
        for step in range(steps_per_epoch + 2, run.steps)
        if step - 1 not in run.dues and step % steps_per_epoch
    ]
    return run._replace(killed_in=draw.choice(quiet))

"""What the jobs train and after which steps they are killed, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rehearsal.kit.judge.steps import Steps

# Steps per epoch, epochs, steps between two checkpoints; and the step of a checkpoint at the
# end of an epoch, with two digits. The short run saves every 2 steps.
CADENCES = ((3, 5, 4, 12), (4, 4, 3, 12), (6, 3, 4, 12))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: killed twice, then resumed."""

    seed: int
    world_size: int
    batch_size: int  # per rank
    steps: Steps
    lr: float
    starts: tuple[int, int]  # the steps of the checkpoints from which it resumes
    workers: tuple[int, int]  # of the two killed jobs

    @property
    def killed_after(self) -> tuple[int, int]:
        """Of each killed job, the number of its optimizer steps: one more than it saved."""
        first, second = self.starts
        return first + 1, second + 1 - first


def drawn(seed: int) -> Run:
    """A run whose ranks have as many samples as each other; the last batches aren't full.

    The first restart is in the middle of the second epoch. The second one is at the end of an
    epoch, from the checkpoint of a step with two digits.
    """
    generator = random.Random(seed)
    world_size, batch_size = 2, generator.choice([3, 4])
    steps_per_epoch, epochs, every, second = generator.choice(CADENCES)
    due = range(every, 2 * steps_per_epoch, every)
    share = (steps_per_epoch - 1) * batch_size + generator.randint(1, batch_size - 1)
    return Run(
        seed=seed,
        world_size=world_size,
        batch_size=batch_size,
        steps=Steps(
            num_samples=world_size * share,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            every=every,
        ),
        lr=generator.uniform(0.01, 0.02),
        starts=(generator.choice([step for step in due if step > steps_per_epoch]), second),
        workers=(2, 1),
    )


def drawn_short(seed: int) -> Run:
    """A short run: its ranks have as many batches, but last ones of different sizes."""
    generator = random.Random(f"{seed} short")
    world_size, batch_size = generator.choice([2, 3]), generator.choice([3, 4])
    steps_per_epoch = 5  # two checkpoints in the middle of the epoch
    share = (steps_per_epoch - 1) * batch_size + generator.randint(2, batch_size)
    return Run(
        seed=seed,
        world_size=world_size,
        batch_size=batch_size,
        steps=Steps(
            num_samples=world_size * share - generator.randint(1, world_size - 1),
            epochs=1,
            steps_per_epoch=steps_per_epoch,
            every=2,
        ),
        lr=generator.uniform(0.01, 0.02),
        starts=(0, 0),
        workers=(0, 0),
    )

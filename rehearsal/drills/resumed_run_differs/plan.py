"""What the jobs train and after which steps they are killed, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rehearsal.kit.judge.steps import Steps

# Steps per epoch, epochs, steps between two checkpoints; and the step of a checkpoint at the
# end of an epoch, with two digits. The short run saves every 2 steps.
CADENCES = ((3, 5, 4, 12), (4, 4, 3, 12), (6, 3, 4, 12))
# Of a short run: steps per epoch, of which two in the middle have a checkpoint; and epochs.
SHORT = ((5, 1), (6, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: killed twice, then resumed."""

    check: int  # the check's seed
    seed: int  # of the noise: an argument of train
    world_size: int
    batch_size: int  # per rank
    steps: Steps
    lr: float
    starts: tuple[int, int]  # the steps of the checkpoints from which it resumes
    killed_ranks: tuple[int, int]

    @property
    def killed_after(self) -> tuple[int, int]:
        """Of each killed job, the number of its optimizer steps: one more than it saved."""
        first, second = self.starts
        return first + 1, second + 1 - first


def drawn(check: int) -> Run:
    """A run that resumes in the middle of an epoch, and at the end of one."""
    generator = random.Random(check)
    world_size, batch_size = 2, generator.choice([3, 4])
    steps_per_epoch, epochs, every, second = generator.choice(CADENCES)
    due = range(every, 2 * steps_per_epoch, every)
    share = (steps_per_epoch - 1) * batch_size + generator.randint(1, batch_size - 1)
    return Run(
        check=check,
        seed=generator.randint(5, 2000),
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
        killed_ranks=(generator.randrange(world_size), generator.randrange(world_size)),
    )


def drawn_short(check: int) -> Run:
    """A short run: its ranks have as many batches, but last ones of different sizes.

    It has another seed.
    """
    generator = random.Random(f"{check} short")
    world_size, batch_size = generator.choice([2, 3]), generator.choice([3, 4])
    steps_per_epoch, epochs = generator.choice(SHORT)
    share = (steps_per_epoch - 1) * batch_size + generator.randint(2, batch_size)
    return Run(
        check=check,
        seed=drawn(check).seed + generator.randint(7, 50),
        world_size=world_size,
        batch_size=batch_size,
        steps=Steps(
            num_samples=world_size * share - generator.randint(1, world_size - 1),
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            every=2,
        ),
        lr=generator.uniform(0.01, 0.02),
        starts=(0, 0),
        killed_ranks=(0, 0),
    )

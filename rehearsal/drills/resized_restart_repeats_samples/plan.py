"""The run of a check, on how many ranks, and where it is killed: drawn from the seed."""

from __future__ import annotations

import random
from typing import NamedTuple

from rehearsal.kit.epoch_plan import EpochRun

# Batch, steps per epoch, epochs, and steps between two saves: more than ten steps.
CADENCES = (
    (6, 4, 3, 2),
    (6, 5, 3, 2),
    (6, 4, 3, 3),
    (6, 5, 3, 4),
    (12, 4, 3, 3),
    (12, 4, 4, 5),
)


class Plan(NamedTuple):
    """A run of three jobs, each on another number of ranks."""

    run: EpochRun
    world_sizes: tuple[int, ...]
    killed_in: int  # the first job's step, counted from 1, in which a rank dies
    killed_again_in: int  # the same of the second job, counted from where it resumes
    killed_ranks: tuple[int, int]

    @property
    def done(self) -> int:
        """The steps before the first kill."""
        return self.killed_in - 1

    @property
    def done_again(self) -> int:
        """The steps before the second kill."""
        return self.run.due_by(self.done) + self.killed_again_in - 1


def drawn(seed: int) -> Plan:
    """A plan of which no rank dies right after a save is due: rank 0 may be saving."""
    draw = random.Random(seed)
    batch, steps_per_epoch, epochs, every = draw.choice(CADENCES)
    world_sizes = (*draw.sample((1, 2), 2), 3)
    run = EpochRun(
        name="whole",
        seed=draw.randrange(1000),
        world_size=3,  # which never have equal shares at an epoch's end
        # In an epoch's last step, one of three ranks has no sample, and maybe one of two.
        num_samples=batch * (steps_per_epoch - 1) + draw.choice((1, 2)),
        global_batch_size=batch,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        every=every,
        lr=draw.uniform(0.005, 0.015),
        tolerance=1e-5,
    )
    quiet = [
        step
        for step in range(every + 2, run.steps)
        if (step - 1) % every and step % steps_per_epoch
    ]
    # In the middle of an epoch, and once more in a later one.
    first = draw.choice([step for step in quiet if step < 2 * steps_per_epoch])
    start = run.due_by(first - 1)
    again = draw.choice([step for step in quiet if step > start + every + 1])
    ranks = (draw.randrange(world_sizes[0]), draw.randrange(world_sizes[1]))
    return Plan(run, world_sizes, first, again - start, ranks)

"""What a job trains, drawn from the check's seed: sizes that the ranks can't share evenly."""

from __future__ import annotations

import random
from typing import NamedTuple


class Plan(NamedTuple):
    """One job."""

    world_size: int
    num_samples: int
    global_batch_size: int
    epochs: int
    lr: float
    seed: int  # of the samples, and of rank 0's weights; rank R's is R more

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job."""
        return self.epochs * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """The last one may be smaller."""
        return -(-self.num_samples // self.global_batch_size)

    def step_of(self, sample: int) -> int:
        """The step of an epoch that trains a sample."""
        return sample // self.global_batch_size

    def size_of(self, step: int) -> int:
        """Samples of a step of an epoch."""
        return min(self.global_batch_size, self.num_samples - step * self.global_batch_size)


def plan_of(seed: int, world_size: int) -> Plan:
    """The plan of a job. The same seed gives the same plan, in any process.

    The ranks divide no full step, and there are fewer samples in an epoch's last step than
    ranks. On one rank, the batch divides the samples: no step may come after the last.
    """
    draw = random.Random(f"{seed} {world_size}")
    # Rounding a share down leaves the last of several ranks with more than rounding up does.
    sizes = [size for size in range(5, 12) if (size + 1) % world_size == 0 or world_size == 1]
    global_batch_size = draw.choice(sizes)
    rest = draw.randrange(1, world_size) if world_size > 1 else 0
    return Plan(
        world_size=world_size,
        num_samples=draw.randint(2, 4) * global_batch_size + rest,
        global_batch_size=global_batch_size,
        epochs=draw.randint(2, 3),
        lr=draw.choice((0.015, 0.02, 0.025)),
        seed=draw.randrange(1000),
    )

"""What the runs train on, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

EPOCHS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One call of ``train`` on all ranks."""

    world_size: int
    data_seed: int
    model_seed: int  # rank 0's; each rank adds its number
    global_batch_size: int
    last_batch: int  # samples of an epoch's last step
    outlier: int  # the place of an outlier in each full batch
    micro_batch_size: int
    max_norm: float
    lr: float

    @property
    def num_samples(self) -> int:
        """Two full batches and a last one."""
        return 2 * self.global_batch_size + self.last_batch

    @property
    def sizes(self) -> list[int]:
        """Samples of each step of an epoch."""
        return [self.global_batch_size, self.global_batch_size, self.last_batch]

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return EPOCHS * len(self.sizes)

    def size_of(self, step: int) -> int:
        """Samples of a step, from 0, over all ranks."""
        return self.sizes[step % len(self.sizes)]


def drawn(seed: int) -> dict[str, Run]:
    """Almost the same run on three ranks, two and one.

    No number of ranks divides the batch. On three ranks, each has two micro-batches of it; on
    two, one has more than the other. An epoch's last step has one sample too few for all ranks
    to get one; on a single rank, it's as large as the others. A full batch has an outlier, so
    that it is clipped: in a rank's first micro-batch, if ranks take turns. A smaller batch has
    none, and is within the bound.
    """
    draw = random.Random(seed)
    batch, micro = draw.choice(((13, 3), (17, 4)))
    last = 2
    run = Run(
        world_size=3,
        data_seed=draw.randrange(1000),
        model_seed=draw.randrange(1000),
        global_batch_size=batch,
        last_batch=last,
        outlier=draw.randrange(last, 3 * micro),
        micro_batch_size=micro,
        max_norm=draw.uniform(14, 18),
        lr=draw.uniform(0.015, 0.02),
    )
    return {
        "three ranks": run,
        "two ranks": replace(run, world_size=2, last_batch=1),
        "one rank": replace(run, world_size=1, last_batch=batch),
    }

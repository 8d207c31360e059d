"""What the jobs train: how many micro-batches each epoch has, drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FEATURES = 24  # enough weights that one all-reduce too many is more than any flag


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job; ``epochs`` has the micro-batches per rank of each epoch."""

    world_size: int
    epochs: Sequence[int]
    grad_accum_steps: int
    micro_batch_size: int
    lr: float
    model_seed: int
    data_seed: int

    @property
    def num_samples(self) -> int:
        """Over all epochs and ranks; no two epochs share a sample."""
        return sum(self.epochs) * self.world_size * self.micro_batch_size

    def ids(self, epoch: int, number: int, rank: int) -> range:
        """The samples of a rank's micro-batch, counted from 0."""
        place = (sum(self.epochs[:epoch]) + number) * self.world_size + rank
        return range(place * self.micro_batch_size, (place + 1) * self.micro_batch_size)

    def steps(self, rank: int) -> Iterator[list[int]]:
        """The samples of a rank in each step of the run."""
        for epoch, count in enumerate(self.epochs):
            for first in range(0, count, self.grad_accum_steps):
                last = min(first + self.grad_accum_steps, count)
                yield [i for n in range(first, last) for i in self.ids(epoch, n, rank)]


def drawn(seed: int) -> list[Run]:
    """Jobs on three ranks, two and one, each with epochs that end in different ways.

    The first epoch has one micro-batch left, so that whatever is carried over shows in a later
    one. Then, in any order: an epoch that is shorter than a step; one of two steps with nothing
    left; in steps of more than two micro-batches, one with only one missing; and on three
    ranks, one with a single micro-batch.
    """
    draw = random.Random(seed)
    runs = []
    for world_size in (3, 2, 1):
        size = draw.choice((2, 3, 4)) if world_size > 1 else draw.choice((1, 2, 3))
        later = [max(1, size - 1), 2 * size]
        later += [2 * size - 1] * (size > 2) + [1] * (world_size == 3)
        draw.shuffle(later)
        runs.append(
            Run(
                world_size=world_size,
                epochs=[draw.randint(1, 2) * size + 1, *later],
                grad_accum_steps=size,
                micro_batch_size=draw.choice((3, 4, 5)),  # not 2, the number of outputs
                lr=draw.uniform(0.01, 0.02),
                model_seed=draw.randrange(1000),
                data_seed=draw.randrange(1000),
            )
        )
    return runs

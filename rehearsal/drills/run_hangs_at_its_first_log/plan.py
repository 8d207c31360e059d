"""What one check draws: the ranks' shares of each step, and how often a step is logged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple


class Plan(NamedTuple):
    """One job's numbers."""

    shares: Sequence[Sequence[int]]  # samples by step and rank
    lr: float
    log_every: int

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return len(self.shares[0])

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return len(self.shares)

    @property
    def due(self) -> list[int]:
        """The steps that are logged."""
        return list(range(self.log_every, self.steps + 1, self.log_every))


def plans_of(seed: int) -> list[Plan]:
    """Several ranks; two whose last step is logged; one rank; a run without a log line."""
    draw = random.Random(seed)
    several = draw.choice((3, 3, 4))
    every = draw.choice((2, 3))
    return [
        plan_of(draw, several, draw.randint(10, 13), draw.choice((3, 4))),
        plan_of(draw, 2, every * draw.randint(3, 4), every),
        plan_of(draw, 1, draw.randint(4, 7), draw.choice((1, 2))),
        plan_of(draw, 2, 3, draw.randint(4, 9)),
    ]


def plan_of(draw: random.Random, world_size: int, steps: int, log_every: int) -> Plan:
    """In every step, rank 0's share is not the mean of the ranks' shares."""
    shares: list[list[int]] = []
    while len(shares) < steps:
        sizes = [draw.randint(1, 5) for _ in range(world_size)]
        if world_size == 1 or sizes[0] * world_size != sum(sizes):
            shares.append(sizes)
    return Plan(shares, lr=draw.randrange(10, 31) / 1000, log_every=log_every)

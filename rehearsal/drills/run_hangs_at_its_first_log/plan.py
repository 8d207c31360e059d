"""What the runs train and when they log, drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One call of ``train`` on all ranks; ``shares[step][rank]`` samples."""

    shares: Sequence[Sequence[int]]
    lr: float
    log_every: int
    data_seed: int

    @property
    def world_size(self) -> int:
        """One share per rank."""
        return len(self.shares[0])

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return len(self.shares)

    @property
    def logged(self) -> list[int]:
        """The steps that rank 0 logs, from 1."""
        return [step for step in range(1, self.steps + 1) if step % self.log_every == 0]

    def ids(self, step: int, rank: int) -> range:
        """The samples of a rank in a step, from 0; no sample is trained twice."""
        first = sum(map(sum, self.shares[:step])) + sum(self.shares[step][:rank])
        return range(first, first + self.shares[step][rank])


def drawn(seed: int) -> dict[str, Run]:
    """Runs on three ranks, two and one, of more than nine steps.

    In each step, no two ranks have the same number of samples. On three ranks, neither the last
    step is logged nor the first; on two, each step is; on one, there's none to log.
    """
    draw = random.Random(seed)
    runs = {}
    for world_size, name in ((3, "3 ranks"), (2, "2 ranks"), (1, "1 rank")):
        log_every = {3: draw.choice((2, 3, 4)), 2: 1, 1: draw.choice((14, 100))}[world_size]
        steps = draw.choice([n for n in range(10, 14) if n % log_every or log_every == 1])
        runs[name] = Run(
            shares=[draw.sample(range(1, 5), world_size) for _ in range(steps)],
            lr=draw.uniform(0.02, 0.03),
            log_every=log_every,
            data_seed=draw.randrange(1000),
        )
    return runs

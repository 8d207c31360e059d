"""What the jobs train, and where it overflows: drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job. ``overflows`` maps a step, from 1, to the ranks and the micro-batch in it."""

    world_size: int
    num_steps: int
    grad_accum_steps: int
    micro_batch_size: int
    lr: float
    max_norm: float
    init_scale: float
    growth_interval: int
    overflows: Mapping[int, tuple[Sequence[int], int]]
    cancels: int  # the overflow that reaches the parameters as NaN
    large: int  # a good step: each rank's gradient fits into half precision, their sum doesn't

    @property
    def per_rank_samples(self) -> int:
        """Samples that a rank trains in the whole run."""
        return self.num_steps * self.grad_accum_steps * self.micro_batch_size

    @property
    def num_samples(self) -> int:
        """Over all ranks; each is trained once."""
        return self.per_rank_samples * self.world_size

    def ids(self, step: int, micro_step: int, rank: int) -> range:
        """The samples of a micro-batch; ``step`` counts from 1, ``micro_step`` from 0."""
        number = ((step - 1) * self.grad_accum_steps + micro_step) * self.world_size + rank
        first = number * self.micro_batch_size
        return range(first, first + self.micro_batch_size)

    def outliers(self) -> list[int]:
        """The samples whose gradient doesn't fit into half precision at any scale."""
        found = []
        for step, (ranks, micro_step) in self.overflows.items():
            found += [self.ids(step, micro_step, rank)[-1] for rank in ranks]
        return found

    def twins(self) -> list[tuple[int, int]]:
        """Two samples of one micro-batch whose infinities cancel, on each rank that has any."""
        ranks, micro_step = self.overflows[self.cancels]
        batches = [self.ids(self.cancels, micro_step, rank) for rank in ranks]
        return [(batch[-1], batch[-2]) for batch in batches]

    def large_samples(self) -> list[int]:
        """On each rank, the sample with nearly the largest gradient that fits."""
        return [self.ids(self.large, 0, rank)[-1] for rank in range(self.world_size)]

    def scales(self) -> list[float]:
        """The scale of each step."""
        scale, good, found = self.init_scale, 0, list[float]()
        for step in range(1, self.num_steps + 1):
            found.append(scale)
            good = 0 if step in self.overflows else good + 1
            if step in self.overflows:
                scale /= 2
            elif good == self.growth_interval:
                scale, good = scale * 2, 0
        return found


def drawn(
    seed: int, world_size: int, max_norms: tuple[float, float], grad_accum_steps: Sequence[int]
) -> Run:
    """A run in which rank 0, another rank and all ranks overflow, each in a step of its own.

    There are good steps before, between and after them; the scale grows at least once.
    """
    generator = random.Random(f"{seed} {world_size}")
    num_steps, growth_interval = generator.randint(11, 13), generator.randint(2, 3)
    num_micro_steps = generator.choice(grad_accum_steps)
    while True:
        steps = generator.sample(range(2, num_steps), 3)
        culprits: list[Sequence[int]] = [[0], [generator.randrange(1, world_size)]]
        culprits.append(range(world_size))
        run = Run(
            world_size=world_size,
            num_steps=num_steps,
            grad_accum_steps=num_micro_steps,
            micro_batch_size=generator.randint(2, 4),
            lr=generator.uniform(0.01, 0.03),
            max_norm=generator.uniform(*max_norms),
            init_scale=2.0 ** generator.randint(5, 7),
            growth_interval=growth_interval,
            overflows={
                step: (ranks, generator.randrange(num_micro_steps))
                for step, ranks in zip(steps, culprits, strict=True)
            },
            cancels=generator.choice(steps),
            large=generator.choice([n for n in range(2, num_steps + 1) if n not in steps]),
        )
        ordered = sorted(steps)
        apart = all(later - one > 1 for one, later in pairwise(ordered))
        grows = any(later > one for one, later in pairwise(run.scales()))
        if apart and grows:
            return run

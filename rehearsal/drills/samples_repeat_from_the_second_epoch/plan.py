"""What the jobs train and when they evaluate, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One call of ``train`` on all ranks."""

    world_size: int
    seed: int
    num_samples: int
    num_held_out: int
    epochs: int
    global_batch_size: int
    lr: float
    eval_every: int
    eval_size: int
    ambient: int  # seeds what else the process draws from; each rank adds its number

    @property
    def steps_per_epoch(self) -> int:
        """The last one is smaller."""
        return -(-self.num_samples // self.global_batch_size)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def size_of(self, step: int) -> int:
        """Samples of a step, from 0, over all ranks."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)

    @property
    def due(self) -> list[int]:
        """The steps after which rank 0 evaluates, from 1."""
        return [step for step in range(1, self.steps + 1) if step % self.eval_every == 0]


def drawn(seed: int) -> dict[str, Run]:
    """Two runs that differ in their evaluations only, and one with another seed.

    There are more than nine steps, no number of ranks divides the global batch, and the last
    batch of an epoch is a single sample: the other ranks have none. There's an evaluation in
    the first epoch, after which the orders must still agree.
    """
    draw = random.Random(seed)
    world_size = draw.choice((2, 3))
    # With so many orders, two of them hardly ever have the same batches.
    global_batch_size, steps_per_epoch, epochs = draw.choice(
        ((5, 4, 3), (5, 5, 3), (5, 4, 5), (7, 4, 3), (7, 4, 4), (7, 3, 5))
    )
    eval_every = draw.choice([n for n in (2, 3) if steps_per_epoch % n or n == 2])
    often = Run(
        world_size=world_size,
        seed=draw.randrange(1, 10_000),
        num_samples=(steps_per_epoch - 1) * global_batch_size + 1,
        num_held_out=draw.randint(30, 40),
        epochs=epochs,
        global_batch_size=global_batch_size,
        lr=draw.uniform(0.01, 0.02),
        eval_every=eval_every,
        eval_size=draw.choice((15, 16, 18)),  # with replacement, some would come twice
        ambient=draw.randrange(10_000),
    )
    never = replace(often, eval_every=100, ambient=often.ambient + 100)
    another = replace(
        often,
        world_size=5 - world_size,
        seed=often.seed + draw.choice((1, 1, 1000)),
        eval_every=draw.choice((1, 4)),
        ambient=often.ambient + 200,
    )
    return {"evaluates often": often, "never evaluates": never, "another seed": another}

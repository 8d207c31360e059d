"""What a check draws from its seed: weights, an epoch that no number of ranks divides, resumes.

n  samples with a weight    m  draws in an epoch    G  global batch    W  world size
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORLD_SIZES = (1, 2, 3)
SEEDS, EPOCHS_OF_A_SEED, DRAWS_OF_A_SEED = 3, 105, 20  # to find two that share their draws
MANY = 6000  # draws whose frequencies are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The numbers of one check.

    Attributes:
        peek: lists that are fetched without a step.
        ahead: how far a loader is ahead of the training.
        stops: positions at which the run moves to another number of ranks.
    """

    weights: Sequence[float]  # (n,), some of them 0
    num_draws: int
    epochs: int
    global_batch_size: int
    seed: int
    peek: int
    ahead: int
    stops: Sequence[int]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.num_draws // self.global_batch_size)

    @property
    def total(self) -> int:
        """Steps of the run."""
        return self.epochs * self.steps

    @property
    def sizes(self) -> list[int]:
        """Slots of each step of the run."""
        first = range(0, self.num_draws, self.global_batch_size)
        return [min(self.global_batch_size, self.num_draws - at) for at in first] * self.epochs

    def where(self, position: int) -> str:
        """A step by name: "step 2 of epoch 1"."""
        epoch, step = divmod(position, self.steps)
        return f"step {step} of epoch {epoch}"


def plans(seed: int) -> dict[str, Plan]:
    """Two plans; the same seed gives the same ones, in any process.

    In the first, the last step of an epoch has fewer slots than the largest number of ranks,
    and a full step isn't divisible by 2 or 3. In the second, nothing is left over anywhere.
    Both have more draws than samples, and a few samples have most of the weight.
    """
    draw = random.Random(f"weight_the_sampler {seed}")
    full = draw.randint(3, 4)
    uneven, even = draw.choice((7, 11, 13)), draw.choice((6, 12))
    return {
        "uneven steps": plan_of(draw, uneven, full * uneven + draw.randint(1, 2)),
        "even steps": plan_of(draw, even, full * even),
    }


def plan_of(draw: random.Random, batch: int, num_draws: int) -> Plan:
    """A plan of three epochs."""
    size, steps = draw.choice((14, 15, 16)), -(-num_draws // batch)
    weights = [round(draw.uniform(0.5, 1.5), 3) for _ in range(size)]
    for sample in draw.sample(range(1, size - 1), 3):
        weights[sample] = round(draw.uniform(8, 12), 3)
    for sample in (0, size - 1, draw.choice([n for n in range(1, size) if weights[n] < 2])):
        weights[sample] = 0.0
    return Plan(
        weights=weights,
        num_draws=num_draws,
        epochs=3,
        global_batch_size=batch,
        seed=draw.randrange(1, 1000),
        peek=draw.randint(1, 2),
        ahead=2,
        # In the middle of an epoch, at its end, and at the end of the run.
        stops=(steps + draw.randint(1, steps - 2), 2 * steps, 3 * steps),
    )

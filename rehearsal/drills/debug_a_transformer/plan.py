"""What a check trains on, with which model and settings: drawn from its seed.

Each sequence begins with three random tokens. From there on each token has one fixed successor,
so a model can learn all but two targets of a sequence. No two sequences begin alike, so a batch
says which ones it holds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

PAD = 0
HEAD = 3  # tokens at the beginning of a sequence that say which one it is
SHORTEST = 8
LEVEL = 1.75  # the loss that a trained model gets below


class Shape(NamedTuple):
    """The arguments of a model, but for its dropout."""

    vocab_size: int
    context_length: int
    width: int
    num_heads: int
    num_layers: int


class Settings(NamedTuple):
    """The arguments of ``train``."""

    seed: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    lr: float
    warmup_steps: int
    max_norm: float

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1."""
        return self.lr * float(min(step / self.warmup_steps, (self.warmup_steps / step) ** 0.5))


class Run(NamedTuple):
    """One call of ``train``."""

    name: str
    settings: Settings
    dropout: float
    num_sequences: int  # how many of the sequences it trains


class Plan(NamedTuple):
    """The constants of one check."""

    seed: int
    shape: Shape
    sequences: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]
    whole: Sequence[Sequence[int]]  # without padding
    eval_size: int  # sequences of a micro-batch in an evaluation
    runs: Sequence[Run]


def plan_of(seed: int) -> Plan:
    """The same in the caller's process and in each rank."""
    draw = random.Random(seed)
    num_tokens = draw.randint(8, 10)
    longest = draw.randint(12, 13)
    num_heads = draw.choice((2, 4))
    shape = Shape(num_tokens + 1, longest, 16, num_heads, 2)
    # One circle of all tokens: in several, some would hardly ever be trained.
    circle = draw.sample(range(1, num_tokens + 1), num_tokens)
    follower = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
    heads = set[tuple[int, ...]]()

    def sequence(length: int) -> list[int]:
        while True:
            head = tuple(draw.randint(1, num_tokens) for _ in range(HEAD))
            if head not in heads:
                break
        heads.add(head)
        found = list(head)
        while len(found) < length:
            found.append(follower[found[-1]])
        return found + [PAD] * (longest - length)

    def some(count: int) -> list[list[int]]:
        # The longest and the shortest are there for certain.
        drawn = [draw.randint(SHORTEST, longest) for _ in range(count - 2)]
        lengths = [longest, SHORTEST, *drawn]
        draw.shuffle(lengths)
        return [sequence(length) for length in lengths]

    batch_size, micro_batch_size = draw.choice(((7, 3), (8, 3), (9, 4)))
    settings = Settings(
        seed=draw.randrange(1, 1000),
        epochs=3,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        lr=draw.uniform(0.15, 0.25),
        warmup_steps=draw.randint(2, 3),
        max_norm=1e6,
    )
    other = settings._replace(seed=settings.seed + draw.randint(1, 9))
    # Each epoch's batches are full, or the last one has a single sequence.
    full, count = 2 * batch_size, 3 * batch_size + 1
    return Plan(
        seed=seed,
        shape=shape,
        sequences=some(count),
        held_out=some(2 * micro_batch_size + draw.randint(1, 2)),
        whole=[sequence(longest) for _ in range(3)],
        eval_size=micro_batch_size,
        runs=(
            Run("accumulated", settings, 0.0, full),
            Run("with dropout", settings._replace(epochs=2), 0.3, full),
            Run("with another seed", other._replace(epochs=1), 0.0, full),
            Run(
                "clipped", other._replace(epochs=8, max_norm=draw.uniform(0.8, 1.2)), 0.0, count
            ),
        ),
    )

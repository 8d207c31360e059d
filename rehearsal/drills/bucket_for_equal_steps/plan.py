"""What a check draws from its seed: lengths with ties and on the bounds, buckets of any size.

G  global batch    W  world size
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

WORLD_SIZES = (1, 2, 3)
SEEDS, EPOCHS = 3, 100  # whose orders are compared
PAD_ID = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The numbers of one check."""

    lengths: Sequence[int]
    bounds: Sequence[int]
    global_batch_size: int
    seed: int
    epoch: int
    too_long: int  # which sequence gets a length above the last bound
    sequences: Sequence[Sequence[Sequence[int]]]  # lists for collate

    def bucket(self, item: int) -> int:
        """The bucket of a sequence."""
        return bisect_left(self.bounds, self.lengths[item])

    def sizes(self) -> list[list[int]]:
        """By bucket: the sizes of its steps, largest first."""
        own = [self.bucket(item) for item in range(len(self.lengths))]
        found = []
        for bucket in range(len(self.bounds)):
            full, rest = divmod(own.count(bucket), self.global_batch_size)
            found.append([self.global_batch_size] * full + [rest] * (rest > 0))
        return found


def plans(seed: int) -> dict[str, Plan]:
    """Two plans; the same seed gives the same ones, in any process.

    In the first, the ranks don't divide a step, and the last bucket has a single sequence. In
    the second, a step has fewer sequences than there are ranks, and one bucket is empty. In
    both, one bucket is full to the last step and one isn't.
    """
    draw = random.Random(f"bucket_for_equal_steps {seed}")
    uneven = draw.choice((5, 7))
    # Steps of 4 and of 2: three ranks with blocks of 2, or one rank with all of the rest.
    counts = [2 * uneven, uneven + 4, 2 * uneven + 2, 1]
    return {
        "uneven steps": plan_of(draw, uneven, counts),
        "small steps": plan_of(draw, 2, [draw.choice((11, 13)), 0, 12, 2]),
    }


def plan_of(draw: random.Random, batch: int, counts: Sequence[int]) -> Plan:
    """A plan whose buckets have ``counts`` sequences, the largest in any but the last place."""
    bounds = [draw.randint(9, 12), draw.randint(20, 30), draw.randint(50, 70)]
    bounds.append(draw.randint(150, 250))
    first = list(counts[:-1])
    draw.shuffle(first)
    lengths: list[int] = []
    for low, high, count in zip([2, *bounds], bounds, [*first, counts[-1]], strict=False):
        # Few different lengths, so that some are equal; one on the bound, one just above the
        # last one.
        pool = [high, low + 1, *draw.sample(range(low + 1, high), 4)]
        own = [high, low + 1, high, *(draw.choice(pool) for _ in range(count))]
        lengths += own[:count]
    draw.shuffle(lengths)
    while not buckets_differ(lengths, bounds, batch):
        draw.shuffle(lengths)
    return Plan(
        lengths=lengths,
        bounds=bounds,
        global_batch_size=batch,
        seed=draw.randrange(1, 1000),
        epoch=draw.randint(1, 5),
        too_long=draw.randrange(1, len(lengths)),
        sequences=[
            [tokens_of(draw, size) for size in sizes]
            for sizes in ((4, draw.randint(6, 9), 1, 5), (3,), (), (4, 4))
        ],
    )


def buckets_differ(lengths: Sequence[int], bounds: Sequence[int], batch: int) -> bool:
    """Whether two ranks with buckets of their own would make different numbers of steps."""
    steps = []
    for shard in (lengths[::2], lengths[1::2]):
        own = [bisect_left(bounds, length) for length in shard]
        steps.append(
            sum(-(-own.count(bucket) // (batch // 2)) for bucket in range(len(bounds)))
        )
    return steps[0] != steps[1]


def tokens_of(draw: random.Random, size: int) -> list[int]:
    """Tokens that end with the padding's id, which a residue may have too."""
    return [*(draw.choice((0, PAD_ID, 2, 5, 30, 200)) for _ in range(size - 1)), PAD_ID]

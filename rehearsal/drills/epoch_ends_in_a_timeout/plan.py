"""What the jobs train, drawn from the check's seed: how many samples each rank streams."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

READ_AHEAD = 8  # batches, at most; the longest epoch has more


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """One job. ``counts[epoch][rank]`` samples; ids count through epochs, then ranks."""

    counts: Sequence[Sequence[int]]
    batch_size: int
    lr: float
    warmup_steps: int

    @property
    def world_size(self) -> int:
        """One stream per rank."""
        return len(self.counts[0])

    @property
    def num_samples(self) -> int:
        """Over all epochs and ranks; no two epochs share a sample."""
        return sum(map(sum, self.counts))

    def ids(self, epoch: int, rank: int) -> range:
        """The samples that a rank's stream yields in an epoch, in order."""
        first = sum(map(sum, self.counts[:epoch])) + sum(self.counts[epoch][:rank])
        return range(first, first + self.counts[epoch][rank])

    def num_steps(self, epoch: int) -> int:
        """As many as the rank with the most samples needs."""
        return -(-max(self.counts[epoch]) // self.batch_size)

    def steps(self) -> Iterator[list[range]]:
        """For each step of the run, the samples of each rank; none for one that is done."""
        for epoch in range(len(self.counts)):
            streams = [self.ids(epoch, rank) for rank in range(self.world_size)]
            for step in range(self.num_steps(epoch)):
                first = step * self.batch_size
                yield [stream[first : first + self.batch_size] for stream in streams]


def drawn(seed: int) -> tuple[Streams, Streams]:
    """Two jobs: in one, some rank is done first in every epoch; the other has a fair epoch.

    In the first job, each of its ranks is the short one once. In the second, one rank has
    nothing at all in the first epoch, so it has no gradient of its own yet.
    """
    generator = random.Random(seed)
    batch_size = generator.randint(2, 4)
    # So long that a reader that may gain a batch in each step is too far ahead at some time.
    long = (READ_AHEAD + generator.randint(8, 9)) * batch_size
    short = generator.randint(2, READ_AHEAD) * batch_size + generator.randrange(batch_size)
    ends = [generator.randrange(1, batch_size), generator.randint(3, 4) * batch_size]
    pairs = [[long + ends[0], short], [batch_size + 1, ends[1]]]
    if generator.random() < 0.5:
        pairs = [pair[::-1] for pair in pairs]
    uneven = Streams(
        counts=pairs,
        batch_size=batch_size,
        lr=generator.uniform(0.01, 0.02),
        # Past the end of the short stream.
        warmup_steps=long // batch_size + generator.randint(1, 2),
    )
    batch_size = generator.randint(3, 5)
    full = generator.randint(2, 4) * batch_size
    # Equally many batches, and a last one of another size on every rank.
    last = generator.sample(range(1, batch_size + 1), 3)
    idle = [generator.randint(1, 3 * batch_size) for _ in range(3)]
    idle[generator.randrange(3)] = 0
    even = Streams(
        counts=[idle, [full + count for count in last]],
        batch_size=batch_size,
        lr=generator.uniform(0.01, 0.02),
        warmup_steps=generator.randint(2, 4),
    )
    return uneven, even

"""What one check draws from its seed: sizes, seeds, where it commits and where it resumes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

# Factors that people take: round ones, those next to them, powers of two, and primes. A larger
# one keeps apart all the epochs and seeds that anybody trains with.
FACTORS = sorted(
    {10**power + near for power in range(1, 8) for near in (-1, 0, 1)}
    | {2**power - near for power in range(4, 25) for near in (0, 1)}
    | {31, 37, 97, 131, 997, 1009, 7919, 9973, 10_007, 12_345, 31_337, 65_537, 99_991, 100_003}
    | {104_729, 999_983, 1_000_003, 1_299_709, 7_368_787, 15_485_863, 16_777_619}
)


class Deal(NamedTuple):
    """How one run is cut: into steps, among ranks, into micro-batches."""

    batch: int  # samples in a step
    micro: int  # micro_batch_size
    epochs: int
    world_sizes: Sequence[int]
    is_bare: bool = False  # whether the config names neither the dataset's size nor the ranks


class Visit(NamedTuple):
    """An epoch of a run with this seed."""

    seed: int
    epoch: int


class Drawn(NamedTuple):
    """The constants of one check."""

    num_samples: int
    seed: int
    main: Deal
    others: Sequence[Deal]
    seeds: Sequence[int]  # whose orders are compared
    epochs: int  # of each of them
    collisions: Sequence[tuple[Visit, Visit]]  # which a careless combination makes equal
    peek: int  # lists taken before the training starts
    workers: Sequence[int]  # of each rank's loader
    committed: int  # steps trained on two ranks before the resume
    resumed_on: Sequence[int]  # world sizes
    back: int  # an earlier position, loaded into the sampler that trained
    far_epoch: int

    @property
    def steps(self) -> int:
        """Steps per epoch of the main run."""
        return -(-self.num_samples // self.main.batch)

    @property
    def total(self) -> int:
        """Steps of the main run."""
        return self.steps * self.main.epochs


def plan_of(seed: int) -> Drawn:
    """The same in the caller's process and in each rank."""
    draw = random.Random(seed)
    # The last step of an epoch has one or two samples: fewer than three ranks. G has a
    # remainder of two or more at some world size, and at two ranks a share is more than one
    # micro-batch.
    cuts = [(n, batch) for n in range(15, 29) for batch in range(4, 10) if n % batch in (1, 2)]
    num_samples, batch = draw.choice([(n, g) for n, g in cuts if n > 2 * g and divisors(n)])
    many = draw.choice([size for size in (4, 5, 7) if batch % size >= 2])
    share = -(-batch // 2)  # at two ranks
    micro = draw.randrange(1, share)
    a_step = -(-share // micro)  # lists
    main = Deal(batch, micro, draw.choice((5, 6)), (1, 2, 3, many))
    whole = draw.choice(divisors(num_samples))
    others = [
        Deal(whole, draw.randrange(1, whole + 1), draw.choice((1, 2)), (2, 3)),  # no remainder
        Deal(num_samples + draw.randrange(1, 9), draw.randrange(2, 9), 3, (2, many)),
        # The second and last step of an epoch has fewer micro-batches than the first.
        Deal(num_samples - draw.randrange(1, 3), draw.randrange(2, 4), 2, (2, 3)),
        Deal(2, 1, 2, (2, many)),  # at the larger size, some ranks never get a sample
    ]
    bare = draw.sample(range(len(others)), 2)
    others = [cut._replace(is_bare=at in bare) for at, cut in enumerate(others)]
    first = draw.randrange(1, 90)
    steps = -(-num_samples // batch)
    middle = [at for at in range(10, 14) if at % steps and at < steps * main.epochs - 1]
    committed = draw.choice(middle)
    return Drawn(
        num_samples=num_samples,
        seed=first,
        main=main,
        others=others,
        seeds=(first, first + 1, first + 2, first),
        epochs=3,
        collisions=collisions(first, draw.randrange(1, 10)),
        peek=a_step + draw.randrange(1, a_step + 1),
        workers=draw.choice(((0, 2), (2, 0))),
        committed=committed,
        resumed_on=(1, draw.choice((3, many))),
        back=draw.randrange(1, committed - 1),
        far_epoch=draw.randrange(200_000_000, 400_000_000),
    )


def divisors(number: int) -> list[int]:
    """Those that leave at least two steps of at least two samples."""
    return [d for d in range(2, number // 2 + 1) if number % d == 0]


def collisions(seed: int, epoch: int) -> list[tuple[Visit, Visit]]:
    """Visits that one number made from both makes equal.

    As seed * factor + epoch, as seed + factor * epoch, or as digits without a separator.
    """
    pairs = [(Visit(seed, int(f"2{epoch}")), Visit(int(f"{seed}2"), epoch))]
    for factor in FACTORS:
        pairs.append((Visit(seed, epoch + factor), Visit(seed + 1, epoch)))
        pairs.append((Visit(seed, epoch + 1), Visit(seed + factor, epoch)))
    return pairs

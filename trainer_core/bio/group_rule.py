"""Which part a group goes to, decided by every rank alone, and identically.

Part of the biotech track; scaffold_groups.py applies it to billions of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.order import hash_words


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingPlan:
    """What decides the result, and, below it, what doesn't.

    Args:
        num_rows: n over all ranks; rows are numbered 0..n-1.
        fractions: shares of train, validation and test.
        by: ``size`` takes the largest groups for training, as a scaffold split does; ``hash``
            draws each group's part.
        seed: decides the draw, and which of several equally large groups comes first.
        rows_per_partition, rows_per_block: bounds of memory.
    """

    num_rows: int
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    by: str = "size"
    seed: int = 0
    rows_per_partition: int = 250_000
    rows_per_block: int = 1_000_000

    @property
    def num_partitions(self) -> int:
        """P: enough that a partition of keys that are all different fits."""
        return -(-self.num_rows // self.rows_per_partition)

    @property
    def num_blocks(self) -> int:
        """Output files of ``rows_per_block`` rows; the last may be shorter."""
        return -(-self.num_rows // self.rows_per_block)


# %%
class PartRule:
    """A group's part, from its hash and its size alone: every rank decides the same.

    Groups are lined up, the largest first, and equally large ones by a hash that the seed
    scrambles; train takes the first of them, until it has its share of rows. Where a boundary
    falls among g groups of one size, each of them is drawn, so the part misses its share by
    about sqrt(g) / 2 groups. A single group that a boundary cuts goes where most of it lies.
    """

    def __init__(self, histogram: dict[int, int], plan: GroupingPlan) -> None:
        (self.key,) = hash_words("scaffold groups", plan.seed, count=1)
        total = sum(size * groups for size, groups in histogram.items())
        ends = [sum(plan.fractions[:1]) * total, sum(plan.fractions[:2]) * total]
        # By hash, all groups count as one size, and the boundaries are shares of its range.
        self.sizes = np.array(sorted(histogram) if plan.by == "size" else [], np.int64)
        self.shares = np.array([[end / max(total, 1) for end in ends]])
        if plan.by == "size":
            self.shares = np.zeros((len(self.sizes), 2))
            taken = 0
            for place in range(len(self.sizes) - 1, -1, -1):
                rows = int(self.sizes[place]) * histogram[int(self.sizes[place])]
                self.shares[place] = [min(max((end - taken) / rows, 0), 1) for end in ends]
                if histogram[int(self.sizes[place])] == 1:
                    self.shares[place] = self.shares[place].round()
                taken += rows

    def parts(self, hashes: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
        """0 train, 1 validation, 2 test for each group."""
        mixed = (hashes ^ self.key) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        draw = (mixed >> np.uint64(11)) / np.float64(2**53)  # in [0, 1)
        limits = self.shares[np.searchsorted(self.sizes, sizes) if len(self.sizes) else 0]
        limits = np.broadcast_to(limits, (len(hashes), 2))
        return np.asarray((draw[:, None] >= limits).sum(axis=1), np.uint64)

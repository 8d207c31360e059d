"""Bins: units of comparable work made of items that differ a thousandfold in size.

The question it answers: "sequences have 10 to 35,000 residues; how do all ranks get the same
number of steps, comparable work, and a resume that is still one integer?" A bin holds as many
items as a budget allows, and a bin is what the trainer orders, deals and counts as one sample.

What a bin looks like depends on the sizes only: "two sequences of 400 and one of 200". Which
sequences of 400 those are changes from epoch to epoch. So a bin costs the same in every epoch,
and any bin of any epoch is found without the others.

    n  items    d  capacities: 1 (tokens) or 2 (nodes and edges)    k  distinct sizes

By hand, batches that are padded to their longest sequence take three lines:

    order = np.argsort(-lengths)
    while start < n:  # the first is the longest, so it decides how many fit
        bins.append(order[start : start := start + budget // lengths[order[start]]])
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# %% active="py"
from trainer_core.bio.size_classes import Size, SizeClasses, check_sizes, short_digest
from trainer_core.order import EpochOrder, hash_words

# %%
# Part of every plan's digest. A change that makes other bins of the same sizes gets a new one:
# otherwise a run that is resumed after an update repeats and skips items.
BINS_VERSION = "bins-1"


class Slots(NamedTuple):
    """A bin's places for items of one size; the bin's copy c begins at first + c * items."""

    size: int  # row of BinPlan.sizes
    items: int
    first: int


class BinPattern(NamedTuple):
    """Bins that are equal in the sizes of their items: ``copies`` of them, in a row."""

    first_bin: int
    copies: int
    slots: tuple[Slots, ...]


# While planning: how many bins, and how many items of which size each of them holds.
PlannedRows = list[tuple[int, dict[int, int]]]


# %%
@dataclass(frozen=True, slots=True)
class BinPlan:
    """Which sizes share a bin, and by that, which items do in any epoch.

    In memory it is 8 bytes per item, and a few thousand patterns. To look up a bin takes memory
    for its own items, and at most 2048 hashes per distinct size in it.
    """

    rule: str
    sizes: NDArray[np.int64]  # (k, d), largest first
    by_size: NDArray[np.int64]  # (n,) item ids, largest first
    starts: NDArray[np.int64]  # (k + 1,) where in by_size each size begins
    patterns: tuple[BinPattern, ...]
    digest: str  # of version, rule, budget, every item's size, and the patterns

    def __len__(self) -> int:
        last = self.patterns[-1]
        return last.first_bin + last.copies

    def items(self, bin_id: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """The items in a bin in one epoch, largest first; over all bins, each item once."""
        if not 0 <= bin_id < len(self):
            raise ValueError(
                f"bin {bin_id}: the plan has bins 0 to {len(self) - 1}, and an epoch of the "
                f"trainer is a permutation of them. Use StepSchedule({len(self)}, ...)."
            )
        # The last pattern that begins at this bin or before it.
        at = bisect_right(self.patterns, bin_id, key=lambda pattern: pattern.first_bin) - 1
        first_bin, _, slots = self.patterns[at]
        found = []
        for size, items, first in slots:
            start, stop = self.starts[size : size + 2].tolist()
            # Each size has a key of its own. With one key for all, two sizes with equally many
            # items would be shuffled in step, and the same two items meet in every epoch.
            own_seed = int(hash_words("bins", seed, size, count=1)[0])
            order = EpochOrder(stop - start, seed=own_seed, epoch=epoch)
            slot = first + (bin_id - first_bin) * items
            found.append(self.by_size[start + order.samples(slot, slot + items)])
        return np.concatenate(found)

    def per_bin(self, values: ArrayLike) -> NDArray[np.int64]:
        """Each bin's sum of ``values``, given per distinct size, (k,): the same every epoch."""
        of_size = np.asarray(values, dtype=np.int64).tolist()
        return self._for_each(lambda slots: sum(of_size[s.size] * s.items for s in slots))

    def fill(self) -> NDArray[np.int64]:
        """What each bin holds, (bins, d): tokens, or nodes and edges."""
        return np.stack([self.per_bin(column) for column in self.sizes.T], axis=1)

    def padded(self) -> NDArray[np.int64]:
        """Each bin's tokens if it is padded to its longest sequence: items x longest."""
        of_size = self.sizes[:, 0].tolist()
        longest = self._for_each(lambda slots: max(of_size[s.size] for s in slots))
        return longest * self._for_each(lambda slots: sum(s.items for s in slots))

    def _for_each(self, number: Callable[[tuple[Slots, ...]], int]) -> NDArray[np.int64]:
        numbers = np.array([number(pattern.slots) for pattern in self.patterns])
        return np.repeat(numbers, [pattern.copies for pattern in self.patterns])


# %%
def number_bins(rule: str, classes: SizeClasses, budget: Size, rows: PlannedRows) -> BinPlan:
    """Number the planned bins, and give each its slots in its sizes."""
    used = [0] * len(classes.counts)
    patterns, first_bin = [], 0
    for copies, content in rows:
        slots = tuple(Slots(size, items, used[size]) for size, items in content.items())
        patterns.append(BinPattern(first_bin, copies, slots))
        first_bin += copies
        for size, items in content.items():
            used[size] += copies * items
    assert used == classes.counts  # each item has exactly one slot
    starts = np.concatenate([[0], np.cumsum(used)])
    digest = short_digest(BINS_VERSION, rule, budget, classes.digest, patterns)
    return BinPlan(rule, classes.sizes, classes.by_size, starts, tuple(patterns), digest)


# %%
def plan_batches(lengths: ArrayLike, budget: int) -> BinPlan:
    """Batches of sequences of similar length: items x longest <= budget, padding counted.

    A batch has more than ``budget - longest`` padded tokens, whatever its longest is. So from a
    budget of ten times the longest sequence on, the work of two batches differs by less than
    10 %. Only one batch, which gets the remainder, is smaller.

    Args:
        lengths: (n,), in tokens; or costs that grow with length (``transformer_cost``).

    Raises:
        UserError: if a sequence is longer than the budget, or empty.
    """
    classes = SizeClasses(check_sizes(lengths, (budget,), ("tokens",)), (budget,))
    rows = cut_batches(classes.sizes[:, 0].tolist(), classes.counts, budget)
    return number_bins("padded", classes, (budget,), rows)


def cut_batches(lengths: Sequence[int], counts: Sequence[int], budget: int) -> PlannedRows:
    """Deal lengths, longest first, to batches of at most ``budget`` padded tokens."""
    rows: PlannedRows = []
    free = 0  # how many more items the last batch can take
    for size, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        if taken := min(free, count):
            rows[-1][1][size] = taken
            free -= taken
        per_batch = budget // length  # a batch's first item is its longest, so it decides
        full, rest = divmod(count - taken, per_batch)
        if full:
            rows.append((full, {size: per_batch}))
        if rest:
            rows.append((1, {size: rest}))
            free = per_batch - rest
    return rows


# %%
Fit = Literal["even", "tight"]


def plan_packing(
    sizes: ArrayLike,
    budget: int | Size,
    *,
    fit: Fit = "even",
    units: tuple[str, ...] = ("tokens",),
) -> BinPlan:
    """Rows that hold whole items up to a budget, planned on the histogram of sizes.

    The largest item goes first. With ``even``, it goes into the row that has the most room, and
    there are as few rows as the total allows: all rows end up about equally full, and each has
    its share of long sequences and of short ones. With ``tight``, best-fit decreasing, it goes
    into the row with the least room. That needs the fewest rows where the budget is less than
    twice the largest item; but rows of long sequences, which cost more attention, come first,
    and the last row gets what is left.

    Items of one size are placed together, so the time grows with distinct sizes, not with n.
    Where these are more than a few thousand, round them up first (``round_up``).

    Args:
        sizes: (n,) lengths, or (n, d), such as nodes and edges.
        budget: what a row can hold, of each.
        units: names for the capacities, for messages.

    Raises:
        UserError: if an item is larger than the budget, or empty.
    """
    limits = (budget,) if isinstance(budget, int) else budget
    classes = SizeClasses(check_sizes(sizes, limits, units), limits)
    rows = pack_rows(classes.sizes.tolist(), classes.counts, limits, fit)
    return number_bins(fit, classes, limits, rows)


@dataclass(slots=True)
class OpenRows:
    """Rows of equal content, and so with equal room."""

    copies: int
    room: Sequence[int]
    content: dict[int, int]

    def slack(self, budget: Size) -> float:
        """The room's size, in budgets."""
        return sum(r / max(b, 1) for r, b in zip(self.room, budget, strict=True))

    def fits(self, amounts: Sequence[int]) -> int:
        """How many items of this size each row has room for."""
        return min(r // a for r, a in zip(self.room, amounts, strict=True) if a)

    def put(self, copies: int, size: int, amounts: Sequence[int], items: int) -> OpenRows:
        """Take ``copies`` of the rows away, put ``items`` into each, and return them."""
        self.copies -= copies
        room = [r - items * a for r, a in zip(self.room, amounts, strict=True)]
        content = {**self.content, size: self.content.get(size, 0) + items}
        return OpenRows(copies, room, content)


def pack_rows(
    sizes: Sequence[Sequence[int]], counts: Sequence[int], budget: Size, fit: Fit
) -> PlannedRows:
    """Deal sizes, largest first, to rows of at most ``budget``."""

    def slack(row: OpenRows) -> float:
        return row.slack(budget)

    totals = np.array(counts) @ np.array(sizes)
    fewest = max(
        -(-total // max(b, 1)) for total, b in zip(totals.tolist(), budget, strict=True)
    )
    rows = [OpenRows(fewest, budget, {})]  # least room first
    for size, (amounts, count) in enumerate(zip(sizes, counts, strict=True)):
        needed = OpenRows(1, amounts, {})
        while count:
            # A row before the first place has less room than this needs.
            places = range(bisect_left(rows, slack(needed), key=slack), len(rows))
            order = places if fit == "tight" else reversed(places)
            at = next((place for place in order if rows[place].fits(amounts)), len(rows))
            if at == len(rows):
                new = OpenRows(0, budget, {})
                new.copies = -(-count // new.fits(amounts))
                rows.append(new)  # nothing has more room than an empty row
            row = rows[at]
            items = min(count, row.fits(amounts)) if fit == "tight" else 1
            filled = row.put(min(row.copies, count // items), size, amounts, items)
            count -= filled.copies * items
            if not row.copies:
                del rows[at]
            insort(rows, filled, key=slack)
    return [(row.copies, row.content) for row in rows if row.content]

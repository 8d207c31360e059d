"""Items grouped by their size: all that a plan of bins knows about them.

Supports bins.py.

    n  items    d  capacities: 1 (tokens) or 2 (nodes and edges)    k  distinct sizes
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# %% active="py"
from trainer_core.settings import UserError

# %%
Size = tuple[int, ...]


def short_digest(*parts: object) -> str:
    """A short hash of values that print the same in every process."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class SizeClasses:
    """Items grouped by size, the ones with the largest share of a budget first.

    Args:
        sizes: (n, d), as ``check_sizes`` returns them.
    """

    def __init__(self, sizes: NDArray[np.int64], budget: Size) -> None:
        # A size as one number: amounts are its digits, each in its own base.
        bases = tuple(limit + 1 for limit in budget)
        keys = np.ravel_multi_index(tuple(sizes.T), bases)
        distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        amounts = np.stack(np.unravel_index(distinct, bases), axis=1).astype(np.int64)
        shares = (amounts / np.maximum(budget, 1)).max(axis=1)
        order = np.argsort(-shares, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.sizes = amounts[order]  # (k, d)
        self.counts: list[int] = counts[order].tolist()
        self.by_size = np.argsort(rank[inverse], kind="stable")  # (n,) item ids
        self.digest = hashlib.sha256(sizes.tobytes()).hexdigest()


# %%
def check_sizes(sizes: ArrayLike, budget: Size, units: tuple[str, ...]) -> NDArray[np.int64]:
    """Sizes as (n, d), of items that fit in a bin and cost something.

    Raises:
        UserError: with the first row that doesn't, counted from 1.
    """
    table = np.asarray(sizes, dtype=np.int64)
    table = table[:, None] if table.ndim == 1 else table
    if not len(table) or not table.shape[1] == len(budget) == len(units):
        raise UserError(
            f"sizes are {table.shape}, and the budget has {', '.join(units)}. There is a row "
            "for each item and a column for each capacity, and no plan without items. Check "
            "what was read."
        )
    for unit, limit, column in zip(units, budget, table.T, strict=True):
        if (column > limit).any():
            row, largest = int((column > limit).argmax()), int(column.argmax())
            raise UserError(
                f"row {row + 1}: {column[row]} {unit}, and the budget is {limit}. An item is "
                "never split between bins, so this one fits in none. Raise the budget to at "
                f"least {column[largest]} (row {largest + 1}), or crop or drop such rows."
            )
    empty = (table < 0).any(axis=1) | (table[:, 0] < 1)
    if empty.any():
        row = int(empty.argmax())
        amounts = ", ".join(f"{n} {unit}" for n, unit in zip(table[row], units, strict=True))
        raise UserError(
            f"row {row + 1}: {amounts}. An item without {units[0]} costs nothing, so a bin "
            "would hold any number of them. Drop it."
        )
    return table


def round_up(sizes: ArrayLike, to: int | Sequence[int]) -> NDArray[np.int64]:
    """Sizes rounded up to multiples of ``to``, or to the nearest of several bounds.

    More items then count as the same size: they change places between epochs, and a plan has
    fewer patterns. It costs the difference as padding. Length buckets are this with their
    bounds, ``round_up(lengths, (128, 256, 512, 1024))``, before ``plan_batches``.

    Raises:
        UserError: if a size is above the last bound.
    """
    exact = np.asarray(sizes, dtype=np.int64)
    if isinstance(to, int):
        return -(-exact // to) * to
    bounds = np.sort(np.asarray(to, dtype=np.int64))
    if (exact > bounds[-1]).any():
        row = int((exact > bounds[-1]).argmax())
        raise UserError(
            f"row {row + 1}: size {exact[row]}, and the largest bucket is {bounds[-1]}. "
            "Padding can't make it smaller. Add a larger bound, or crop or drop such rows."
        )
    return bounds[np.searchsorted(bounds, exact)]


def transformer_cost(lengths: ArrayLike, width: int) -> NDArray[np.int64]:
    """What a sequence costs a transformer, counted in tokens of a very short sequence.

    A layer's matrices take 24 * width**2 FLOPs per token (four for attention, and two with a
    hidden layer of 4 * width), and attention itself takes 4 * L * width. Together that is
    L + L**2 / (6 * width) tokens' worth, rounded up. A plan of these costs bounds work; a plan
    of lengths bounds memory.
    """
    exact = np.asarray(lengths, dtype=np.int64)
    return exact - (-(exact**2) // (6 * width))

"""Each task's AUROC by comparing all pairs, and what the usual mistakes make of it."""

from __future__ import annotations

import statistics
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Id, scores (T,), and labels (T,): 0, 1, or None for a missing one.
Row = tuple[int, list[float], list[float | None]]
Rows = list[Row]


class Variant(NamedTuple):
    """What a mistake returns."""

    code: str
    words: str  # after "its AUROCs are those "
    aurocs: dict[int, float]  # of the defined tasks


def auroc(positives: Sequence[float], negatives: Sequence[float], tie: float) -> float | None:
    """The share of pairs with the positive above; None without a pair."""
    pairs = [(p > n) + tie * (p == n) for p in positives for n in negatives]
    return statistics.fmean(pairs) if pairs else None


def of_rows(rows: Rows, *, tie: float = 0.5, missing: float | None = None) -> dict[int, float]:
    """Each defined task's AUROC over all of these rows."""
    found = {}
    for task in range(len(rows[0][1]) if rows else 0):
        labeled = [
            (missing if lab[task] is None else lab[task], sc[task]) for _, sc, lab in rows
        ]
        positives = [score for label, score in labeled if label == 1]
        negatives = [score for label, score in labeled if label == 0]
        value = auroc(positives, negatives, tie)
        if value is not None:
            found[task] = value
    return found


def once(rows: Rows) -> Rows:
    """Each sample's first row."""
    return list({row[0]: row for row in reversed(rows)}.values())


def aurocs(shards: Sequence[Rows]) -> dict[int, float]:
    """The right ones."""
    return of_rows(once([row for shard in shards for row in shard]))


def in_float32(number: int) -> float:
    """The nearest float32."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def variants(shards: Sequence[Rows]) -> Iterator[Variant]:
    """The usual mistakes."""
    rows = [row for shard in shards for row in shard]
    distinct, times = once(rows), Counter(row[0] for row in rows)
    yield Variant(
        "duplicates-counted", "with each repeated sample counted again", of_rows(rows)
    )
    by_rank = [row for shard in shards for row in once(shard)]
    if len(by_rank) > len(distinct):
        words = "with samples counted once on each rank that has them"
        yield Variant("duplicates-counted", words, of_rows(by_rank))
    lost = of_rows([row for row in distinct if times[row[0]] == 1])
    yield Variant("samples-lost", "without any sample that was repeated", lost)
    merged = once([(int(in_float32(sample)), *rest) for sample, *rest in rows])  # type: ignore[misc]
    words = "with samples taken for one if their ids are equal in float32"
    yield Variant("samples-lost", words, of_rows(merged))
    as_negative = of_rows(distinct, missing=0.0)
    yield Variant("missing-as-negative", "with missing labels as negatives", as_negative)
    yield Variant("ties-not-half", "with a tie as a lost pair", of_rows(distinct, tie=0))
    yield Variant("ties-not-half", "with a tie as a won pair", of_rows(distinct, tie=1))
    yield from means_over_ranks(shards)


def means_over_ranks(shards: Sequence[Rows]) -> Iterator[Variant]:
    """Each rank's own AUROC, averaged over the ranks that have one."""
    own = [of_rows(shard) for shard in shards]
    plain, weighted = {}, {}
    for task in sorted({task for found in own for task in found}):
        pairs = [
            (found[task], len(s)) for found, s in zip(own, shards, strict=True) if task in found
        ]
        plain[task] = statistics.fmean(value for value, _ in pairs)
        total = sum(size for _, size in pairs)
        weighted[task] = sum(value * size for value, size in pairs) / total
    yield Variant("mean-over-ranks", "of each rank, averaged", plain)
    yield Variant("mean-over-ranks", "of each rank, weighted by its rows", weighted)

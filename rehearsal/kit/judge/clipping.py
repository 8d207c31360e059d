"""Which gradient did a step follow, and when was it clipped?

Clipping is not linear: if you clip part of a gradient before the rest has been added, you take
a different step. So the gradients of all ranks' micro-batches give one result for each way of
clipping, and a judge compares these with what the weights did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

Vector = Sequence[float]
Place = Sequence[slice]  # of the vector's elements that are clipped together


def norm(vector: Vector) -> float:
    """The L2 norm."""
    return math.sqrt(sum(x * x for x in vector))


def scaled(vector: Vector, factor: float) -> list[float]:
    """The vector times a number."""
    return [x * factor for x in vector]


def weighted(vectors: Sequence[Vector], weights: Vector) -> list[float]:
    """The sum of the vectors, each times its weight."""
    return [
        sum(w * x for w, x in zip(weights, column, strict=True))
        for column in zip(*vectors, strict=True)
    ]


def clipped(vector: Vector, most: float) -> list[float]:
    """The vector, scaled down to the norm ``most`` if its own is larger."""
    return scaled(vector, min(1.0, most / (norm(vector) or 1.0)))


def away(ours: Vector, theirs: Vector) -> tuple[float, int]:
    """The largest difference, relative to the largest element of ``theirs``, and its place."""
    size = max(map(abs, theirs)) or 1.0
    gaps = [abs(a - b) / size for a, b in zip(ours, theirs, strict=True)]
    worst = next((at for at, gap in enumerate(gaps) if not math.isfinite(gap)), None)
    place = worst if worst is not None else max(range(len(gaps)), key=gaps.__getitem__)
    return (gaps[place] if worst is None else math.inf), place


def ways_to_clip(
    sums: Sequence[Sequence[Vector]],
    total: int,
    most: float,
    places: Mapping[str, Sequence[Place]],
) -> Iterator[tuple[str, str, list[float]]]:
    """Each gradient that a step may have followed: code, words and value, the right one first.

    Args:
        sums: for each rank and micro-batch, the gradient of the summed loss.
        total: the number of samples in the step, over all ranks.
        most: the bound on the norm.
        places: what somebody may clip piece by piece, such as "tensor": where each piece lies.
    """
    world_size, length = len(sums), len(next(v for rank in sums for v in rank))
    mean = scaled(added(list(chain(*sums)), length), 1 / total)
    yield "", "the mean gradient, clipped by its own norm", clipped(mean, most)
    stretched = scaled(mean, most / (norm(mean) or 1.0))
    yield "clipped-up", "the mean gradient, scaled up to the bound", stretched
    yield "not-clipped", "the mean gradient, not clipped", mean
    for name, own_places in places.items():
        by_place = list(mean)
        for place in own_places:
            inside = clipped([x for part in place for x in mean[part]], most)
            for part in place:
                size = len(mean[part])
                by_place[part], inside = inside[:size], inside[size:]
        yield (
            "clipped-in-parts",
            f"the mean gradient, each {name} clipped by its own norm",
            by_place,
        )
    by_element = [max(-most, min(most, x)) for x in mean]
    yield "clipped-in-parts", "the mean gradient, each element clipped", by_element
    # As DDP has it, a rank's gradient is averaged; as a plain sum has it, it is added.
    for scale, weight in ((world_size / total, 1 / world_size), (1 / total, 1.0)):
        ranks = [[scaled(vector, scale) for vector in rank] for rank in sums]
        own = [added(rank, length) for rank in ranks]
        for code, words, local in _local_ways(ranks, own, length, most):
            result = scaled(added(local, length), weight)
            yield code, words, result
            yield (
                code,
                words + ", then clipped once more after the reduce",
                clipped(result, most),
            )
        norms = [norm(vector) for vector in own]
        for words, wrong in (
            ("rank 0's", norms[0]),
            ("the largest of the ranks'", max(norms)),
            ("the mean of the ranks'", sum(norms) / world_size),
            ("the sum of the ranks'", sum(norms)),
            ("the root of the sum of the ranks' squared norms", norm(norms)),
        ):
            words = f"the mean gradient, clipped by a different norm: {words}, {wrong:.3g}"
            yield "norm-of-norms", words, scaled(mean, min(1.0, most / (wrong or 1.0)))


def _local_ways(
    ranks: Sequence[Sequence[Vector]], own: Sequence[Vector], length: int, most: float
) -> Iterator[tuple[str, str, list[list[float]]]]:
    """Code, words and each rank's gradient, clipped before the ranks are added up."""
    each = [clipped(vector, most) for vector in own]
    yield "clipped-per-rank", "gradients that each rank had clipped by its own norm", each
    words = "gradients that each rank had clipped after each micro-batch"
    for until in (0, 1):  # all micro-batches; all but the last
        kept = []
        for rank in ranks:
            sum_so_far = [0.0] * length
            for at, vector in enumerate(rank, 1):
                sum_so_far = added([sum_so_far, vector], length)
                if at <= len(rank) - until:
                    sum_so_far = clipped(sum_so_far, most)
            kept.append(sum_so_far)
        yield "clipped-per-micro-batch", words + " but the last" * until, kept
    alone = [added([clipped(vector, most) for vector in rank], length) for rank in ranks]
    words = "the sum of micro-batches, each clipped by its own norm"
    yield "clipped-per-micro-batch", words, alone


def added(vectors: Sequence[Vector], length: int) -> list[float]:
    """Their sum; zeros if there is none."""
    return weighted([[0.0] * length, *vectors], [1.0] * (len(vectors) + 1))

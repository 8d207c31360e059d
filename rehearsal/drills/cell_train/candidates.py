"""Which gradient did the step follow: the right one, or which of the plausible wrong ones?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rehearsal.kit.judge.clipping import Place, Vector, added, clipped, scaled, ways_to_clip


def candidate_gradients(
    sums: Sequence[Sequence[Vector]],
    sizes: Sequence[Sequence[int]],
    most: float,
    places: Mapping[str, Sequence[Place]],
) -> Iterator[tuple[str, str, list[float]]]:
    """Code, words and value of gradients that a step may have followed, the right one first.

    Args:
        sums: of each rank and micro-batch, the gradient of the summed loss.
        sizes: their samples.
        most: the bound on the norm.
        places: as ``ways_to_clip`` takes them.
    """
    total = sum(map(sum, sizes))
    right, stretched, *rest = ways_to_clip(sums, total, most, places)
    yield right
    # The sum, clipped, equals the mean, scaled up: so this one comes before the wrong means.
    yield "clipping", *stretched[1:]
    for code, words, vector in wrong_means(sums, sizes, total):
        yield code, words, clipped(vector, most)
    for _, words, vector in rest:
        yield "clipping", words, vector
    yield from clipped_own_means(sums, sizes, most)


def wrong_means(
    sums: Sequence[Sequence[Vector]], sizes: Sequence[Sequence[int]], total: int
) -> Iterator[tuple[str, str, list[float]]]:
    """Means in which samples are not weighted equally, or whose scale is wrong."""
    world_size, num_micro, code = len(sums), len(sums[0]), "mean-of-means"
    length = len(sums[0][0])

    def mean(weights: Sequence[Sequence[float]]) -> list[float]:
        rows = zip(sums, weights, strict=True)
        return added(
            [scaled(v, w) for vs, ws in rows for v, w in zip(vs, ws, strict=True)], length
        )

    each = [[1.0] * num_micro for _ in sums]
    own = [[1 / max(1, size) / world_size for size in rank] for rank in sizes]
    filled = [max(1, sum(size > 0 for size in rank)) for rank in sizes]
    yield (
        code,
        "the mean over ranks of each rank's own mean",
        mean([[1 / max(1, sum(rank)) / world_size] * num_micro for rank in sizes]),
    )
    yield (
        code,
        "a mean in which all micro-batches of a rank weigh the same",
        mean([[w / count for w in rank] for rank, count in zip(own, filled, strict=True)]),
    )
    yield (
        code,
        "a mean in which all micro-batches of a rank weigh the same, even empty ones",
        mean([[w / num_micro for w in rank] for rank in own]),
    )
    yield code, "the sum of the means of the micro-batches", mean(own)
    code = "scale"
    for words, factor in (
        ("the sum over its samples", 1.0),
        ("the sum over its samples, divided by the number of ranks", 1 / world_size),
        ("the mean over its samples, divided by the number of ranks", 1 / total / world_size),
        ("the mean over its samples, times the number of ranks", world_size / total),
    ):
        yield code, words, mean([scaled(rank, factor) for rank in each])
    last = [[0.0] * (num_micro - 1) + [1 / total] for _ in sums]
    words = "the sum over the ranks' last micro-batches, divided by the step's samples"
    yield "only-the-last-micro-batch", words, mean(last)


def clipped_own_means(
    sums: Sequence[Sequence[Vector]], sizes: Sequence[Sequence[int]], most: float
) -> Iterator[tuple[str, str, list[float]]]:
    """Each rank clips the mean over its own samples."""
    length = len(sums[0][0])
    means = [
        scaled(added(rank, length), 1 / max(1, sum(own)))
        for rank, own in zip(sums, sizes, strict=True)
    ]
    kept = [clipped(mean, most) for mean in means]
    words = "the mean over ranks of each rank's own mean, clipped on that rank"
    yield "clipping", words, scaled(added(kept, length), 1 / len(sums))

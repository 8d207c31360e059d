"""Which mean did a step follow? The right one and the usual wrong ones, on plain numbers.

S_rt  summed loss of task t on rank r    N_rt  its labels there    K  tasks with a label
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .plan import TASKS, GlobalBatch, Job

Vector = Sequence[float]  # a gradient, and the loss as its last element
Weights = Callable[[int, int], float]  # what each label of a task counts on a rank


class Explanation(NamedTuple):
    """A gradient that a step may have followed."""

    code: str  # "" for the right one
    words: str  # after "step 1 (uneven) followed "
    vector: Vector


def weighted_sum(parts: Sequence[tuple[float, Vector]]) -> list[float]:
    """The sum of vectors, each times its weight."""
    columns = zip(*(vector for _, vector in parts), strict=True)
    weights = [weight for weight, _ in parts]
    return [sum(w * x for w, x in zip(weights, column, strict=True)) for column in columns]


def over(count: float) -> float:
    """1 / count; 0 for an empty mean."""
    return 1 / count if count else 0.0


class Sums(NamedTuple):
    """What the losses of a step are added up from."""

    job: Job
    step: GlobalBatch
    parts: Sequence[Sequence[Mapping[str, Any]]]  # by rank and task: observed.parts_of

    def mean(
        self, weight: Weights, positive: int = 1, negative: int = 0, missing: int = 0
    ) -> list[float]:
        """The loss with each label's weight.

        Args:
            positive, negative: the power of pos_weight in the loss of such a label.
            missing: 1 to add the missing labels, as negatives.
        """
        terms = []
        for rank, tasks in enumerate(self.parts):
            for task, part in enumerate(tasks):
                factor, own = self.job.pos_weight[task], weight(rank, task)
                for name, times in (
                    ("positive", factor**positive),
                    ("negative", factor**negative),
                    ("missing", missing),
                ):
                    vector = [*part[name]["gradient"], part[name]["loss"]]
                    terms.append((own * times, vector))
        return weighted_sum(terms)


def explanations(sums: Sums) -> Iterator[Explanation]:
    """The right gradient of a step, then those that a mistake makes."""
    step, num_ranks = sums.step, sums.job.world_size
    totals, rows = step.totals(), sum(map(len, step.labels))
    num_tasks, num_labels = sum(total > 0 for total in totals), sum(totals)

    def right(_: int, task: int) -> float:
        return over(totals[task] * num_tasks)

    yield Explanation("", "", sums.mean(right))
    for weight in (
        right,
        lambda rank, task: over(rows * TASKS),
        lambda rank, task: over(num_labels),
        lambda rank, task: over(num_ranks * TASKS * len(step.labels[rank])),
    ):
        words = "the loss with each missing label as a negative"
        yield Explanation("missing-as-negative", words, sums.mean(weight, missing=1))
    for words, positive, negative in (
        ("the loss without pos_weight", 0, 0),
        ("the loss with pos_weight on every label, negatives included", 1, 1),
        ("the loss with pos_weight on the negatives", 0, 1),
    ):
        yield Explanation("wrong-label-loss", words, sums.mean(right, positive, negative))
    for words, weight in means_of_means(step, num_tasks):
        yield Explanation("mean-of-means", words, sums.mean(weight))
    pairs = zip(sums.job.pos_weight, step.totals(1.0), step.totals(0.0), strict=True)
    sizes = [factor * ones + zeros for factor, ones, zeros in pairs]
    for words, weight in (
        ("the mean over all labels, whatever their task", lambda _, t: over(num_labels)),
        (f"the sum over tasks divided by all {TASKS}", lambda _, t: over(totals[t] * TASKS)),
        ("the mean over molecules, labeled or not", lambda _, t: over(rows * num_tasks)),
        ("the sum divided by molecules times tasks", lambda _, t: over(rows * TASKS)),
        (
            "the mean in which a positive counts as pos_weight labels",
            lambda _, t: over(sizes[t] * num_tasks),
        ),
    ):
        yield Explanation("wrong-mean", words, sums.mean(weight))


def means_of_means(step: GlobalBatch, num_tasks: int) -> Iterator[tuple[str, Weights]]:
    """What each rank's own mean makes of a label's weight."""
    own = [step.counts(rank) for rank in range(len(step.labels))]
    size = len(own)
    yield (
        "the mean over ranks of each rank's mean over its tasks",
        lambda r, t: over(own[r][t] * sum(map(bool, own[r])) * size),
    )
    yield (
        "the mean over ranks of each rank's mean over its labels",
        lambda r, t: over(sum(own[r]) * size),
    )
    yield (
        "the mean over ranks of each task's mean there",
        lambda r, t: over(own[r][t] * num_tasks * size),
    )
    yield (
        "the mean over the ranks that have a task of its mean there",
        lambda r, t: over(own[r][t] * num_tasks * sum(counts[t] > 0 for counts in own)),
    )


def is_close(ours: Vector, theirs: Vector) -> bool:
    """Whether two gradients differ by no more than rounding in another order does."""
    apart = math.dist(ours, theirs)
    return apart <= 1e-4 * math.hypot(*theirs) + 1e-7


def ratio(ours: Vector, theirs: Vector) -> float | None:
    """How many times longer ``ours`` is, if it has the same direction."""
    size = sum(x * x for x in theirs)
    if not size:
        return None
    times = sum(a * b for a, b in zip(ours, theirs, strict=True)) / size
    is_parallel = is_close(ours, [times * x for x in theirs])
    return times if is_parallel and abs(times) > 1e-6 else None

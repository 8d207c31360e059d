"""How well a model ranks molecules, per task and over all ranks.

The question it answers: "if we buy the top of this list, how many actives are in it?"

    n  molecules with a label      A  actives (label 1)      k  molecules at the top
    r  rank in the list, from 1    T  tasks

    AUROC   chance that an active scores above an inactive. Blind to how rare actives are: 0.9
            can mean one active in the top hundred.
    AUPRC   average precision. Chance level is A/n, so compare tasks with care.
    EF@x%   hit rate in the top x %, divided by the hit rate of the whole list. At most
            min(n/k, n/A): 100 at 1 %, but 4 if a quarter of the list is active.
    BEDROC  like AUROC, weighted toward the top: at alpha 20, the first 8 % of the list carry
            80 % of the weight (1 - exp(-20 * 0.08) = 0.798).

Tied scores: AUROC, EF and BEDROC are the mean over all orders of the tied molecules, so they
don't depend on the order of the rows. For AUROC that is scikit-learn's half a point per tie.
Average precision takes tied molecules together, as scikit-learn does. Rank in float32: in bf16,
with 8 significant bits, good scores become ties.

No metric here may be averaged over ranks: each is a statement about pairs or places in *one*
list. So the ranks' scores are gathered, and the metric is computed once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# %% active="py"
from trainer_core.bio.gathered_scores import ScoreArray, ScoreTable, gather_scores
from trainer_core.bio.packages import load
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.settings import UserError

# %%
ActiveMask = NDArray[np.bool_]
ScreeningMetric = Callable[[ActiveMask, ScoreArray], float]


def why_undefined(is_active: ActiveMask) -> str | None:
    """Why no metric of this list exists, or None: it needs an active and an inactive."""
    if not is_active.size:
        return "no label"
    if not is_active.any():
        return f"no positive among {is_active.size} labels"
    if is_active.all():
        return f"no negative among {is_active.size} labels"
    return None


def checked_ranking(is_active: ActiveMask, scores: ScoreArray) -> tuple[ActiveMask, ScoreArray]:
    """Both as flat arrays.

    Raises:
        UserError: if they differ in length, a label isn't 0 or 1, a score isn't finite, or one
            of the classes is missing.
    """
    labels, scores = np.asarray(is_active).ravel(), np.asarray(scores).ravel()
    if not np.issubdtype(scores.dtype, np.floating):  # -scores of uint8 would wrap around
        scores = scores.astype(np.float64)
    if labels.size != scores.size:
        found: str | None = f"{labels.size} labels and {scores.size} scores"
    elif (is_bad := ~(((labels == 0) | (labels == 1)) & np.isfinite(scores))).any():
        row = int(is_bad.argmax())
        found = f"row {row}: label {labels[row]:g}, score {scores[row]:g}"
    else:
        found = why_undefined(labels == 1)
    if found:
        raise UserError(
            f"{found}. A ranking needs labels that are 0 or 1, at least one of each, and a "
            "finite score for each label; without them any number would be invented. "
            "screening_report leaves such a task out, by name."
        )
    return labels == 1, scores


def auroc(is_active: ActiveMask, scores: ScoreArray) -> float:
    """Area under the ROC curve, by scikit-learn."""
    is_active, scores = checked_ranking(is_active, scores)
    return float(load("sklearn.metrics", "AUROC").roc_auc_score(is_active, scores))


def average_precision(is_active: ActiveMask, scores: ScoreArray) -> float:
    """AUPRC as average precision, by scikit-learn."""
    is_active, scores = checked_ranking(is_active, scores)
    metrics = load("sklearn.metrics", "average precision")
    return float(metrics.average_precision_score(is_active, scores))


def top_count(num_molecules: int, fraction: float) -> int:
    """k: the top ``fraction`` of the list, rounded up to whole molecules.

    Decimal, as written: in binary, 0.07 * 100 is 7.000000000000001, which rounds up to 8.

    Raises:
        UserError: if ``fraction`` isn't in 0..1, without 0.
    """
    if not 0 < fraction <= 1:
        raise UserError(
            f"fraction={fraction}: the top of a list is a part of it, more than 0 and at most "
            "1. For EF@1%, use 0.01."
        )
    return math.ceil(Fraction(str(fraction)) * num_molecules)


def max_enrichment(num_molecules: int, num_active: int, fraction: float = 0.01) -> float:
    """EF of a perfect ranking: min(n/k, n/A). Report it next to EF."""
    return num_molecules / max(top_count(num_molecules, fraction), num_active)


def enrichment_factor(
    is_active: ActiveMask, scores: ScoreArray, fraction: float = 0.01
) -> float:
    """EF: hit rate among the k best, over the hit rate of all n.

    Of the molecules tied at place k, the share that fits counts: the mean over their orders.
    """
    is_active, scores = checked_ranking(is_active, scores)
    top = top_count(scores.size, fraction)
    cutoff = np.partition(scores, -top)[-top]
    above, tied = scores > cutoff, scores == cutoff
    share = (top - above.sum()) / tied.sum()
    hits = is_active[above].sum() + share * is_active[tied].sum()
    return float(hits / top / is_active.mean())


def bedroc(is_active: ActiveMask, scores: ScoreArray, alpha: float = 20.0) -> float:
    """Boltzmann-enhanced discrimination of ROC; 1 for the best order, 0 for the worst.

    Truchon and Bayly, "Evaluating Virtual Screening Methods: Good and Bad Metrics for the
    'Early Recognition' Problem", J. Chem. Inf. Model. 47, 488-508 (2007). With R = A/n and RIE
    the mean of exp(-alpha r/n) over the actives, divided by its mean over all molecules:

        BEDROC = RIE * R sinh(alpha/2) / (cosh(alpha/2) - cosh(alpha/2 - alpha R))
                 + 1 / (1 - exp(alpha (1 - R)))

    which is (S - S_worst) / (S_best - S_worst) for S = sum of exp(-alpha r/n) over the actives:
    the form below, which doesn't overflow. It reads as a chance only if alpha * A/n is well
    below 1; with more actives, values of different lists don't compare.

    Raises:
        UserError: if ``alpha`` is below 0.001 or not finite.
    """
    if not 1e-3 <= alpha < math.inf:
        raise UserError(
            f"alpha={alpha}: it says how much the top of the list counts, and must be at least "
            "0.001 and finite. At 0 every place counts the same, which is AUROC. The usual "
            "one is 20."
        )
    is_active, scores = checked_ranking(is_active, scores)
    num_active = int(is_active.sum())
    # Of places 1..n, times exp(alpha/n), which cancels: the first is 1 and can't underflow.
    weights = np.exp(-alpha * np.arange(scores.size) / scores.size)
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    firsts = np.cumsum(sizes) - sizes
    group_weights = np.add.reduceat(weights, firsts) / sizes  # the mean over a tie's places
    found = group_weights[group[is_active]].sum()
    best, worst = weights[:num_active].sum(), weights[-num_active:].sum()
    return float((found - worst) / (best - worst))


SCREENING_METRICS: Mapping[str, ScreeningMetric] = {
    "auroc": auroc,
    "auprc": average_precision,
    "ef_1pct": enrichment_factor,
    "bedroc_20": bedroc,
}


# %%
class TaskMetrics(NamedTuple):
    """A task's metrics, and what they are measured on."""

    num_labels: int
    num_active: int
    values: dict[str, float]  # by metric

    @property
    def prevalence(self) -> float:
        """A/n: the AUPRC of a random order."""
        return self.num_active / self.num_labels


class OverTasks(NamedTuple):
    """One metric over the tasks that have it; None and None if none has."""

    median: float | None
    mean: float | None
    num_tasks: int


@dataclass(frozen=True, slots=True)
class ScreeningReport:
    """The metrics of each task that has them, and why the others don't."""

    tasks: dict[str, TaskMetrics]
    undefined: dict[str, str]  # task to reason: "no positive among 34 labels"
    num_samples: int
    num_duplicates: int = 0  # rows dropped because their sample was there already

    def aggregate(self, metric: str) -> OverTasks:
        """Median and mean over the tasks that are defined, and how many those are."""
        values = [task.values[metric] for task in self.tasks.values()]
        if not values:
            return OverTasks(None, None, 0)
        return OverTasks(statistics.median(values), statistics.fmean(values), len(values))


def screening_report(
    table: ScoreTable,
    tasks: Sequence[str],
    metrics: Mapping[str, ScreeningMetric] = SCREENING_METRICS,
) -> ScreeningReport:
    """Compute ``metrics`` for each task, over the samples that have its label.

    Raises:
        UserError: if a label isn't 0, 1 or NaN, or a labeled sample's score isn't finite; by
            task and sample.
    """
    defined, undefined = {}, {}
    for task, labels, scores in zip(tasks, table.labels.T, table.scores.T, strict=True):
        has_label = ~np.isnan(labels)
        is_bad = has_label & ~(((labels == 0) | (labels == 1)) & np.isfinite(scores))
        if is_bad.any():
            at = int(is_bad.argmax())
            raise UserError(
                f"sample {table.samples[at]}, task {task!r}: label {labels[at]:g}, score "
                f"{scores[at]:g}. A label is 0, 1 or NaN (missing), and what has one needs a "
                "finite score, or there is no ranking. Look at that sample, and at the model's "
                "output for it."
            )
        is_active = labels[has_label] == 1
        if reason := why_undefined(is_active):
            undefined[task] = reason
        else:
            values = {name: of(is_active, scores[has_label]) for name, of in metrics.items()}
            defined[task] = TaskMetrics(is_active.size, int(is_active.sum()), values)
    return ScreeningReport(defined, undefined, len(table.samples), table.num_duplicates)


def screening_report_over_ranks(
    samples: Tensor,
    scores: Tensor,
    labels: Tensor,
    tasks: Sequence[str],
    *,
    num_samples: int | None = None,
    metrics: Mapping[str, ScreeningMetric] = SCREENING_METRICS,
) -> ScreeningReport:
    """Gather, compute once on rank 0, and share the report; equal on all ranks.

    Collective: every rank, including one without rows.

    Args:
        samples, scores, labels: this rank's, as ``gather_scores`` takes them.
        num_samples: of the whole evaluation set; None doesn't check it.
        metrics: functions defined in a module, by name.

    Raises:
        UserError: on every rank, for what ``gather_scores`` and ``screening_report`` refuse, or
            if samples are missing.
    """
    table = gather_scores(samples, scores, labels)
    report = None
    with errors_on_all_ranks():
        if table is not None:
            if num_samples is not None and len(table.samples) != num_samples:
                raise UserError(
                    f"{len(table.samples)} different samples were scored, of {num_samples}. A "
                    "metric of a part isn't the metric of the whole. Score each sample on some "
                    "rank (drop_last=False)."
                )
            report = screening_report(table, tasks, metrics)
    shared: ScreeningReport = gather_objects(report)[0]
    return shared

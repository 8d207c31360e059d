"""How much of a label does a scaffold's name give away?

Part of the biotech track. A model that has learned nothing but each scaffold's mean label does
well on a random split and no better than a constant on a scaffold split. This measures that
difference, in units of the label's variance.

    n  molecules with a label     g  groups (scaffolds)     k  folds
    between, within               variance of the groups' means, and around them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.order import EpochOrder

# %%
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class ScaffoldVariance(NamedTuple):
    """A label's variance, taken apart; NaN with one group, or without a group of two."""

    between: float
    within: float

    @property
    def share(self) -> float:
        """The part of the variance that the scaffold decides, 0..1."""
        total = self.between + self.within
        return self.between / total if total > 0 else float("nan")


def scaffold_variance(labels: FloatArray, groups: IntArray) -> ScaffoldVariance:
    """One-way analysis of variance with random effects, for groups of any size.

    A plain variance of the groups' means would also count the noise in each mean.
    """
    groups = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(groups)
    n, g = len(labels), len(sizes)
    if g < 2 or n == g:
        return ScaffoldVariance(float("nan"), float("nan"))
    means = np.bincount(groups, labels) / sizes
    within = float(((labels - means[groups]) ** 2).sum() / (n - g))
    spread = float((sizes * (means - labels.mean()) ** 2).sum() / (g - 1))
    # E[spread] = within + typical * between, where typical is the size if all are equal.
    typical = (n - (sizes**2).sum() / n) / (g - 1)
    return ScaffoldVariance(max(0.0, (spread - within) / typical), within)


# %%
def memorizer_predictions(labels: FloatArray, groups: IntArray, train: IntArray) -> FloatArray:
    """What a model predicts for all n that knows only each scaffold's mean label in ``train``.

    A mean of few labels is noisy, so it is drawn toward the overall mean by
    m / (m + within / between), m being the scaffold's labels in ``train``: the best linear
    prediction. A scaffold that isn't in ``train`` gets the overall mean.
    """
    variance = scaffold_variance(labels[train], groups[train])
    center = labels[train].mean()
    if not variance.between > 0:  # zero, or NaN
        return np.full(len(labels), center)
    num_groups = int(groups.max()) + 1
    sizes = np.bincount(groups[train], minlength=num_groups)
    sums = np.bincount(groups[train], labels[train] - center, minlength=num_groups)
    # At least something: without noise, the ratio is 0, and so is the size of a new scaffold.
    weights = np.maximum(sizes + variance.within / variance.between, 1e-12)
    return np.asarray(center + (sums / weights)[groups])


def memorized_share(
    labels: FloatArray, groups: IntArray, train: IntArray, held_out: IntArray
) -> float:
    """The memorizer's R2 on ``held_out``, against predicting the training mean."""
    errors = labels[held_out] - memorizer_predictions(labels, groups, train)[held_out]
    baseline = labels[held_out] - labels[train].mean()
    total = float((baseline**2).sum())
    return 1 - float((errors**2).sum()) / total if total > 0 else float("nan")


# %%
class ScaffoldLeak(NamedTuple):
    """What a random split adds to the score of a model that only memorizes scaffolds."""

    share: float  # of the label's variance that the scaffold decides
    random_r2: float  # the memorizer's, over k random folds
    grouped_r2: float  # the same with whole scaffolds held out; about 0

    @property
    def gap(self) -> float:
        """The leakage: R2 that vanishes when scaffolds stay on one side."""
        return self.random_r2 - self.grouped_r2


def scaffold_leak(
    labels: Any, group_keys: Sequence[str], *, folds: int = 5, seed: int = 0
) -> ScaffoldLeak:
    """Cross-validate the memorizer twice: with molecules and with whole scaffolds held out.

    Every label is predicted once in each way, so both figures are over all n labels, and what
    is noise in one is noise in the other.

    Args:
        labels: (rows,) float; NaN where nothing was measured.
    """
    values = np.asarray(labels, np.float64)
    measured = ~np.isnan(values)
    values = values[measured]
    groups = np.unique(np.array(group_keys)[measured], return_inverse=True)[1]
    if len(values) < 2 * folds or values.min() == values.max():
        return ScaffoldLeak(*[float("nan")] * 3)
    by_row = _scattered_folds(len(values), folds, seed)
    by_group = _scattered_folds(int(groups.max()) + 1, folds, seed)[groups]
    scores = []
    for fold_of in (by_row, by_group):
        errors = np.zeros(len(values))
        for fold in range(folds):
            train, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            if train.size:  # with very few scaffolds, one fold may have all
                predictions = memorizer_predictions(values, groups, train)
                errors[held_out] = values[held_out] - predictions[held_out]
        scores.append(1 - float((errors**2).mean()) / float(values.var()))
    return ScaffoldLeak(float(scaffold_variance(values, groups).share), *scores)


def _scattered_folds(count: int, folds: int, seed: int) -> IntArray:
    """Folds 0..k-1 dealt out to ``count`` things in the seed's order."""
    fold_of = np.empty(count, np.int64)
    fold_of[EpochOrder(count, seed=seed, epoch=0).samples(0, count)] = np.arange(count) % folds
    return fold_of


def known_gap(scaffold_share: float, group_keys: Sequence[str], *, folds: int = 5) -> float:
    """The gap that a planted ``scaffold_share`` must produce, from the recipe alone.

    A memorizer that has seen m labels of a scaffold knows m / (m + within / between) of its
    effect's variance; with k folds it sees (k - 1) / k of the scaffold's other labels.
    """
    if scaffold_share == 0:
        return 0.0
    _, places, sizes = np.unique(np.array(group_keys), return_inverse=True, return_counts=True)
    seen = (sizes[places] - 1) * (folds - 1) / folds
    ratio = (1 - scaffold_share) / scaffold_share
    return float(np.mean(scaffold_share * seen / (seen + ratio)))

"""A simulated campaign: a model chooses compounds, a lab measures them, the labels come later.

Chapter 33. The state of a campaign is one table that only grows. A row says what was chosen, in
which round, on which plate, and from which round on its value may be used; so the training set
of any round can be had again, and a campaign resumes from the table alone.

    n  molecules of the pool     F  features     M  draws of the model (its small ensemble)
    row                          of the pool, ascending by the molecule's number
    activity                     percent of the positive control
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rehearsal.handbook.assay_plates import COMPOUNDS, Correction, Reader, read_plate, values_of
from rehearsal.handbook.screening_pool import MEAN

Floats = NDArray[np.float64]
Inputs = NDArray[np.float32]
Rows = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Table = NDArray[np.void]  # of LABEL
Pending = Literal["ignore", "exclude"]

LABEL = np.dtype(
    [("row", "i8"), ("plate", "i8"), ("chosen", "i8"), ("arrives", "i8"), ("value", "f8")]
)
NEVER = 10**6  # arrives: of the holdout, and of a plate that was withdrawn
DRAWS = 8
# In percent: the prior of a feature's weight, a label's noise, and what no weight can explain.
WEIGHT_SPREAD, NOISE, UNEXPLAINED = 2.0, 5.0, 5.0
CONSTANT = 5.0  # the value of the feature that gives the model its intercept


class Candidates(NamedTuple):
    """What an acquisition function sees; what it returns is a function of this alone."""

    draws: Floats  # (n, M): the activity of each molecule, by each draw of the model
    allowed: Booleans  # (n,): not measured, not held out, not under way
    wells: int  # how many to choose
    random: np.random.Generator  # of (seed, round)


Acquire = Callable[[Candidates], Rows]


def inputs_of(fingerprints: Inputs) -> Inputs:
    """The fingerprints, and one more feature that is the same for all molecules: (n, F)."""
    constant = np.full(len(fingerprints), CONSTANT, np.float32)
    return np.column_stack([fingerprints, constant])


def fit_draws(
    inputs: Inputs, labels: Floats, random: np.random.Generator, *, noise: float = NOISE
) -> Floats:
    """Weights of M linear models: (F, M), draws from the posterior of Bayesian regression.

    Each draw is the ridge solution for labels with noise added, pulled toward weights drawn
    from the prior. So draws disagree about features that no label has seen; an ensemble of
    plain ridge regressions, all pulled toward zero, would agree there.

    Args:
        noise: standard deviation of one measurement, in percent.
    """
    num_features, sigma2 = inputs.shape[1], noise**2 + UNEXPLAINED**2
    prior = WEIGHT_SPREAD * random.standard_normal((num_features, DRAWS))
    drawn = np.sqrt(sigma2) * random.standard_normal((len(labels), DRAWS))
    wide = inputs.astype(np.float64)
    precision = wide.T @ wide / sigma2 + np.eye(num_features) / WEIGHT_SPREAD**2
    pull = wide.T @ (labels[:, None] - MEAN + drawn) / sigma2 + prior / WEIGHT_SPREAD**2
    return np.asarray(np.linalg.solve(precision, pull))


def predict(weights: Floats, inputs: Inputs) -> Floats:
    """The activity of each molecule by each draw: (n, M)."""
    return np.asarray(inputs @ weights.astype(np.float32) + MEAN, np.float64)


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A pool, a lab and a budget. Everything that happens follows from these and a seed."""

    inputs: Inputs  # (n, F), of inputs_of
    truth: Floats  # (n,): the planted activity, which only the lab looks at
    rounds: int = 8
    delay: int = 0  # rounds that a label is late: 0 means that it's there in the next round
    wells: int = COMPOUNDS  # compounds a round
    pending: Pending = "exclude"  # molecules that are at the lab: not to be chosen again
    reader: Reader = field(default_factory=Reader)
    correction: Correction = "controls and edge"
    holdout: int = 2 * COMPOUNDS  # random molecules, measured first and frozen
    start: int = COMPOUNDS  # random molecules, measured first and trained on

    def __post_init__(self) -> None:
        """Raises ValueError if two plates would get one number, and so the same noise."""
        for name, plates in (("holdout", 50), ("start", 50), ("wells", 100)):
            if getattr(self, name) > plates * COMPOUNDS:
                raise ValueError(
                    f"{name}={getattr(self, name)}: at most {plates} plates of {COMPOUNDS} "
                    "have numbers of their own."
                )

    def measure(self, rows: Rows, chosen: int, arrives: int, seed: int) -> Table:
        """Labels of these molecules, 80 to a plate; a plate is a function of (seed, number)."""
        labels = np.zeros(len(rows), LABEL)
        labels["row"], labels["chosen"], labels["arrives"] = rows, chosen, arrives
        for at in range(0, len(rows), COMPOUNDS):
            # The holdout's plates are 0 and 1, the start's is 50, round 1's 100, and so on.
            number = 100 * chosen + at // COMPOUNDS + (50 if arrives == 0 else 0)
            part = slice(at, at + COMPOUNDS)
            random = np.random.default_rng((seed, number, 1))
            plate = read_plate(self.truth[rows[part]], self.reader, random)
            labels["plate"][part] = number
            labels["value"][part] = values_of(plate, self.correction)
        return labels

    def first_labels(self, seed: int) -> Table:
        """The frozen holdout and what the first model is trained on, both random."""
        order = np.random.default_rng((seed, 0, 2)).permutation(len(self.truth))
        held, start = order[: self.holdout], order[self.holdout :][: self.start]
        frozen = self.measure(held, 0, NEVER, seed)
        return np.concatenate([frozen, self.measure(start, 0, 0, seed)])


def known(table: Table, round_: int) -> Table:
    """The labels that had arrived by ``round_``: what its model is trained on."""
    arrived: Table = table[table["arrives"] <= round_]
    return arrived


def held_out(table: Table) -> Table:
    """The labels of the frozen holdout."""
    frozen: Table = table[(table["arrives"] == NEVER) & (table["chosen"] == 0)]
    return frozen


def model_of(campaign: Campaign, table: Table, round_: int, seed: int) -> Floats:
    """The weights that ``round_`` chooses by: a function of table, round and seed."""
    labels = known(table, round_)
    random = np.random.default_rng((seed, round_, 3))
    noise = 100 * campaign.reader.noise
    return fit_draws(campaign.inputs[labels["row"]], labels["value"], random, noise=noise)


def choose(campaign: Campaign, table: Table, round_: int, acquire: Acquire, seed: int) -> Rows:
    """The molecules that ``round_`` sends to the lab."""
    settled = table[(table["arrives"] <= round_) | (table["arrives"] == NEVER)]
    out = table if campaign.pending == "exclude" else settled
    allowed = np.ones(len(campaign.truth), bool)
    allowed[out["row"]] = False
    draws = predict(model_of(campaign, table, round_, seed), campaign.inputs)
    random = np.random.default_rng((seed, round_, 4))
    return acquire(Candidates(draws, allowed, campaign.wells, random))


def run_campaign(
    campaign: Campaign, acquire: Acquire, seed: int, table: Table | None = None
) -> Table:
    """The table of the whole campaign, continued from ``table`` if there is one."""
    if table is None:
        table = campaign.first_labels(seed)
    first = int(table["chosen"].max()) + 1  # rounds count from 1
    for round_ in range(first, campaign.rounds + 1):
        rows = choose(campaign, table, round_, acquire, seed)
        arrives = round_ + 1 + campaign.delay
        table = np.concatenate([table, campaign.measure(rows, round_, arrives, seed)])
    return table

"""The lab's molecules and measurements, made from the plan's seed: what is really true.

Nothing here imports the trainer: the truth doesn't depend on the code that is deployed.

    n  molecules    t  assays
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rehearsal.incidents.biotech.world import Library, with_library, world_of
from rehearsal.incidents.world import Plan

# Ring systems with two places for substituents and one for the rest, as in bio/assays.py.
LEFT = (
    *("{0}c1c({1})cc(cc1){2}", "{0}c1c({1})cc(nc1){2}", "{0}c1c({1})cc(s1){2}"),
    *("{0}C1C({1})CC(CC1){2}", "{0}C1C({1})CN(CC1){2}", "{0}c1c({1})cc(o1){2}"),
    *("{0}c1c({1})cc2cc(ccc2c1){2}", "{0}c1c({1})cc2[nH]c(cc2c1){2}"),
)
LINKERS = ("", "C", "CC", "CO", "C(=O)", "C(=O)N", "CS(=O)(=O)")
RIGHT = ("c3ccccc3", "c3ccncc3", "c3cccs3", "C3CCCCC3", "N3CCOCC3", "N3CCCCC3", "c3ncccn3")
SUBSTITUENTS = ("[H]", "F", "Cl", "Br", "C", "CC", "O", "OC", "N")
# Of the variance of what an assay measures, before it becomes a hit or a miss; the rest is
# noise. What a scaffold contributes says nothing about another scaffold.
SCAFFOLD, SUBSTITUENT = 0.7, 0.27
SPARSE_LABELS = 9  # of a column that was hardly measured
SALT = ".Cl"

Labels = NDArray[np.float32]


@dataclass(frozen=True)
class Truth:
    """What the lab knows."""

    smiles: list[str]  # (n,), of the table
    rows: list[int]  # the molecule of each row of the table; salts have a second row
    labels: Labels  # (n, t), complete
    measured: NDArray[np.bool_]  # (rows, t)
    fresh_smiles: list[str]
    fresh_labels: Labels  # complete
    assays: tuple[str, ...]

    @property
    def known(self) -> Labels:
        """Labels with NaN where no row of the molecule has a measurement, (n, t)."""
        found = np.zeros(self.labels.shape, np.bool_)
        np.logical_or.at(found, self.rows, self.measured)
        return np.where(found, self.labels, np.float32("nan"))


def truth_of(plan: Plan) -> Truth:
    """The lab's molecules, those of the table first, and every label."""
    library: Library = world_of(plan).library
    random = np.random.default_rng((plan.seed, library.num_scaffolds))
    smiles, parts = molecules(library, random)
    labels = hits(parts, library, random)
    count = library.num_scaffolds * library.per_scaffold
    rows = [*range(count), *sorted(random.permutation(count)[: library.num_salts].tolist())]
    measured = random.random((len(rows), library.num_assays)) >= library.missing_fraction
    if library.sparse_assay is not None:
        column = measured[:, library.sparse_assay]
        column[:] = False
        column[random.permutation(len(rows))[:SPARSE_LABELS]] = True
    return Truth(
        smiles=smiles[:count],
        rows=rows,
        labels=labels[:count],
        measured=measured,
        fresh_smiles=smiles[count:],
        fresh_labels=labels[count:],
        assays=tuple(f"assay_{number}" for number in range(library.num_assays)),
    )


def molecules(
    library: Library, random: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """SMILES, scaffold by scaffold; of each its scaffold and two substituents, (n, 3)."""
    cores = list(product(LEFT, LINKERS, RIGHT))
    pairs = list(product(range(len(SUBSTITUENTS)), repeat=2))
    smiles, parts = [], []
    number = library.num_scaffolds + library.fresh_scaffolds
    for scaffold, core in enumerate(random.permutation(len(cores))[:number].tolist()):
        left, linker, right = cores[core]
        for pair in random.permutation(len(pairs))[: library.per_scaffold].tolist():
            first, second = pairs[pair]
            ends = SUBSTITUENTS[first], SUBSTITUENTS[second]
            smiles.append(left.format(*ends, linker + right))
            parts.append((scaffold, first, second))
    return smiles, np.array(parts)


def hits(parts: NDArray[np.int64], library: Library, random: np.random.Generator) -> Labels:
    """Every label of every molecule, (n, t): 1 for the most active ones of each assay."""
    columns = []
    for _ in range(library.num_assays):
        value = random.standard_normal(len(parts)) * np.sqrt(1 - SCAFFOLD - SUBSTITUENT)
        for place, share in enumerate((SCAFFOLD, SUBSTITUENT / 2, SUBSTITUENT / 2)):
            effect = random.standard_normal(parts[:, place].max() + 1)[parts[:, place]]
            value += (effect - effect.mean()) / effect.std() * np.sqrt(share)
        columns.append(value > np.quantile(value, 1 - library.active_fraction))
    return np.stack(columns, axis=1).astype(np.float32)


def plates_of(plan: Plan) -> NDArray[np.int64]:
    """The plate, from 1, that each molecule of the table was measured on, (n,)."""
    library = world_of(plan).library
    count = library.num_scaffolds * library.per_scaffold
    random = np.random.default_rng((plan.seed, count, library.num_plates))
    return random.permutation(np.arange(count) % library.num_plates) + 1


def labels_as_read(plan: Plan, truth: Truth) -> Labels:
    """The complete labels, but for a plate whose hits were called at another cutoff, (n, t)."""
    library, labels = world_of(plan).library, truth.labels.copy()
    if library.shifted_plate is not None:
        # The same values, and another cutoff.
        other = with_library(plan, active_fraction=library.shifted_fraction)
        is_shifted = plates_of(plan) == library.shifted_plate
        labels[is_shifted] = truth_of(other).labels[is_shifted]
    return labels


def table_of(plan: Plan) -> dict[str, Any]:
    """The delivery in use, as columns: what ``MoleculeRows`` takes."""
    truth, library = truth_of(plan), world_of(plan).library
    count = len(truth.smiles)
    delivery = plan.settings["delivery"]
    empty = np.float32(0 if delivery in library.zeros_in else "nan")
    labels = np.where(truth.measured, labels_as_read(plan, truth)[truth.rows], empty)
    excluded = np.isin(plates_of(plan), plan.settings.get("excluded_plates", []))
    labels[excluded[truth.rows]] = np.nan
    return {
        "smiles": [
            truth.smiles[molecule] + (SALT if row >= count else "")
            for row, molecule in enumerate(truth.rows)
        ],
        "labels": labels,
        "tasks": truth.assays,
        "source": delivery,
    }

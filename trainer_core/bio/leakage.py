"""What does a model know about the test set before it is tested?

Part of the biotech track. A split that keeps scaffolds apart can still leak: by duplicates,
mirror images, near neighbors, shared assays, and measurements from the future. The report
counts each, and says how much of the label the scaffold's name alone gives away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.clusters import scaffold_group_keys
from trainer_core.bio.featurize import morgan_bit_vectors
from trainer_core.bio.molecules import MoleculeTable
from trainer_core.bio.packages import load
from trainer_core.bio.scaffold_effects import ScaffoldLeak, memorized_share, scaffold_leak
from trainer_core.bio.splits import PART_NAMES, TEST, TRAIN, Split
from trainer_core.settings import UserError

# %%
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class SharedGroups(NamedTuple):
    """Groups with members on both sides of a split."""

    groups: int
    rows: int  # held-out molecules in them
    fraction: float  # of the held-out molecules


class NearestNeighbors(NamedTuple):
    """Tanimoto similarity of held-out molecules to their nearest molecule in train."""

    compared: int
    quantiles: tuple[float, ...]  # at QUANTILES
    above: float  # fraction at or above the threshold
    threshold: float


class TaskLeak(NamedTuple):
    """What the scaffold's name gives away about one task."""

    task: str
    labels: int  # measured, on both sides
    memorized_r2: float  # on this split's held-out part, by the scaffold's training mean
    leak: ScaffoldLeak  # what random cross-validation would add


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageReport:
    """Everything that the two sides of a split share; ``lines`` prints it."""

    split: str
    held_out: str
    train_rows: int
    held_out_rows: int
    duplicates: SharedGroups  # the same molecule
    conflicts: int  # of these, held-out molecules whose label differs from train's
    stereoisomers: SharedGroups  # equal but for stereo or isotope labels, duplicates included
    scaffolds: SharedGroups  # molecules without a ring are not counted
    generic_scaffolds: SharedGroups
    acyclic: int  # held-out molecules without a ring
    neighbors: NearestNeighbors
    assays: SharedGroups
    time_inversions: int | None  # None if no molecule has a year
    tasks: tuple[TaskLeak, ...]

    def lines(self) -> list[str]:
        """The report as text, a finding a line."""
        near = self.neighbors
        spread = ", ".join(
            f"{100 * share:.0f}%: {value:.2f}"
            for share, value in zip(QUANTILES, near.quantiles, strict=True)
        )
        found = [
            f"{self.split} split: {self.train_rows} train, "
            f"{self.held_out_rows} {self.held_out}",
            _share_line("identical molecules", self.duplicates),
            f"  of these with different labels: {self.conflicts}",
            _share_line("equal but for stereo or isotopes", self.stereoisomers),
            _share_line("scaffolds", self.scaffolds) + f"; {self.acyclic} without a ring",
            _share_line("generic scaffolds", self.generic_scaffolds),
            f"nearest train molecule (Tanimoto): {spread}; {100 * near.above:.1f}% at "
            f"{near.threshold} or more ({near.compared} compared)",
            _share_line("assays", self.assays),
        ]
        if self.time_inversions is not None:
            found.append(f"train molecules measured after the oldest: {self.time_inversions}")
        return found + [
            f"{task.task}: the scaffold decides {100 * task.leak.share:.0f}% of the variance; "
            f"knowing it alone scores R2 {task.memorized_r2:.2f} here, and {task.leak.gap:.2f} "
            "more at random than by scaffold"
            for task in self.tasks
        ]


def _share_line(name: str, shared: SharedGroups) -> str:
    return f"{name} on both sides: {shared.groups} ({100 * shared.fraction:.1f}% of rows)"


# %%
def leakage_report(
    table: MoleculeTable,
    made: Split,
    *,
    part: int = TEST,
    threshold: float = 0.7,
    max_compared: int = 2000,
) -> LeakageReport:
    """Compare the training part of a split with a held-out part.

    Args:
        threshold: similarity from which a neighbor counts as close.
        max_compared: held-out molecules whose nearest neighbor is looked up, evenly spaced in
            the table's content: each one costs a comparison with all of train.

    Raises:
        UserError: if the split is of another table, or one of the parts is empty.
    """
    if made.table.digest != table.digest or len(made.parts) != len(table):
        raise UserError(
            f"a {made.name} split of {len(made.parts)} molecules, and a table of {len(table)} "
            "with another content: the parts belong to other molecules. Use split.table."
        )
    train, held_out = made.rows_of(TRAIN), made.rows_of(part)
    if not (train.size and held_out.size):
        raise UserError(
            f"{made.name} split: {made.counts}. There is nothing to compare with an empty "
            "part. Choose another part, or another split."
        )

    def shared(names: Callable[[int], object]) -> SharedGroups:
        return _shared_groups(names, train, held_out)

    keys = table.keys
    return LeakageReport(
        split=made.name,
        held_out=PART_NAMES[part],
        train_rows=train.size,
        held_out_rows=held_out.size,
        duplicates=shared(lambda row: [keys[row].smiles]),
        conflicts=_conflicts_across(table, train, held_out),
        stereoisomers=shared(lambda row: [keys[row].flat]),
        scaffolds=shared(lambda row: [keys[row].scaffold] if keys[row].scaffold else []),
        generic_scaffolds=shared(lambda row: [keys[row].generic] if keys[row].generic else []),
        acyclic=sum(not keys[row].scaffold for row in held_out),
        neighbors=nearest_neighbors(table, train, held_out, threshold, max_compared),
        assays=shared(lambda row: table.assays[row]),
        time_inversions=_time_inversions(table, train, held_out),
        tasks=_task_leaks(table, train, held_out),
    )


def _shared_groups(
    names: Callable[[int], object], train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> SharedGroups:
    """Groups on both sides; ``names`` gives a row's groups, none or several."""
    known = {name for row in train for name in names(row)}  # type: ignore[attr-defined]
    met = [known.intersection(names(row)) for row in held_out]  # type: ignore[arg-type]
    rows = sum(map(bool, met))
    return SharedGroups(len(set().union(*met)), rows, rows / len(held_out))


def _conflicts_across(
    table: MoleculeTable, train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> int:
    """Held-out molecules that train knows too, with another label for the same task."""
    twins: dict[str, list[int]] = {}
    for row in train.tolist():
        twins.setdefault(table.keys[row].smiles, []).append(row)

    def is_contradicted(row: int) -> bool:
        others = table.labels[twins.get(table.keys[row].smiles, [])]
        differs = others != table.labels[row]
        return bool((differs & ~np.isnan(others) & ~np.isnan(table.labels[row])).any())

    return sum(is_contradicted(row) for row in held_out.tolist())


def nearest_neighbors(
    table: MoleculeTable,
    train: NDArray[np.int64],
    held_out: NDArray[np.int64],
    threshold: float,
    max_compared: int,
) -> NearestNeighbors:
    """Similarity of held-out molecules to their nearest one in train (Morgan, radius 2)."""
    data = load("rdkit.DataStructs", "comparing molecules")
    ordered = table.order[np.isin(table.order, held_out)]
    count = min(max_compared, len(ordered))
    chosen = ordered[np.linspace(0, len(ordered) - 1, count).astype(np.int64)]
    references = morgan_bit_vectors(sorted({table.keys[row].smiles for row in train}))
    queries = morgan_bit_vectors(table.keys[row].smiles for row in chosen)
    best = np.array([max(data.BulkTanimotoSimilarity(one, references)) for one in queries])
    quantiles = tuple(float(value) for value in np.quantile(best, QUANTILES))
    return NearestNeighbors(count, quantiles, float((best >= threshold).mean()), threshold)


def _time_inversions(
    table: MoleculeTable, train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> int | None:
    """Train molecules whose last measurement is newer than the oldest held-out molecule."""
    oldest = np.fmin.reduce(table.years[held_out])
    if np.isnan(oldest):
        return None
    return int((table.last_years[train] > oldest).sum())


def _task_leaks(
    table: MoleculeTable, train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> tuple[TaskLeak, ...]:
    """For each task with a label on both sides, what the scaffold gives away."""
    names = scaffold_group_keys(table, acyclic="molecule")
    groups = np.unique(np.array(names), return_inverse=True)[1]
    found = []
    for column, task in enumerate(table.tasks):
        labels = table.labels[:, column].astype(np.float64)
        known, asked = (rows[~np.isnan(labels[rows])] for rows in (train, held_out))
        if not (known.size and asked.size):
            continue
        score = memorized_share(labels, groups, known, asked)
        measured = known.size + asked.size
        found.append(TaskLeak(task, measured, score, scaffold_leak(labels, names)))
    return tuple(found)

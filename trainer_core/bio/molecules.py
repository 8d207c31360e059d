"""Which rows of a table are the same molecule, and what scaffold does each one have?

Part of the biotech track. Rows are standardized and merged before anything is split: a salt, a
mirrored drawing and the parent compound are one molecule, and on two sides of a split they are
the answer key.

    n  molecules after merging        t  tasks (columns of labels)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.molecule_keys import MoleculeKeys, molecule_standardizer
from trainer_core.settings import UserError

# %%
Labels = NDArray[np.float32]  # (n, t), NaN where nothing was measured
Years = NDArray[np.float64]  # (n,), NaN where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MoleculeRows:
    """What was read, a row each; only ``smiles`` is required.

    Args:
        labels: (rows, t) float, NaN where nothing was measured.
        tasks: names of the t columns.
        numbers: where each row is in ``source``, for messages; 1, 2, ... if empty.
        years: when each row was measured; NaN where unknown.
        assays: the id of the assay that measured each row; "" where unknown.
        source: the file's name, for messages.
    """

    smiles: Sequence[str]
    labels: Any = None
    tasks: Sequence[str] = ()
    ids: Sequence[str] = ()
    numbers: Sequence[int] = ()
    years: Any = None
    assays: Sequence[str] = ()
    source: str = "molecules"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoleculeOptions:
    """How rows become molecules.

    Args:
        tautomer: replace each molecule by RDKit's canonical tautomer. Standardizing then takes
            more than twice as long, and stereo at centers that tautomerize is lost.
        stereo: ``keep``, or ``drop`` to make stereoisomers one molecule.
        on_bad: ``raise`` at the first row that can't be read, or ``skip`` and count it.
        on_conflict: what rows of one molecule with different labels leave: ``missing`` (NaN),
            their ``mean``, or ``raise``.
        tolerance: labels this far apart still agree; they leave their mean.
        merge: False keeps identical molecules as rows of their own, to show what that does.
    """

    tautomer: bool = False
    stereo: Literal["keep", "drop"] = "keep"
    on_bad: Literal["raise", "skip"] = "raise"
    on_conflict: Literal["missing", "mean", "raise"] = "missing"
    tolerance: float = 0.0
    merge: bool = True


@dataclass(frozen=True, kw_only=True)
class MoleculeTable:
    """Molecules ready to be split, in the order in which the source first names them."""

    ids: tuple[str, ...]
    rows: tuple[int, ...]  # where in the source the molecule was first named
    keys: tuple[MoleculeKeys, ...]
    labels: Labels
    tasks: tuple[str, ...]
    years: Years  # of the first measurement
    last_years: Years  # of the last one: labels may come from it
    assays: tuple[tuple[str, ...], ...]  # every assay that measured the molecule
    conflicts: NDArray[np.bool_]  # (n, t): where merged rows disagreed
    rows_read: int
    skipped: tuple[str, ...] = field(default=())  # one message for each row left out
    fragments_removed: int = 0  # rows that were salts or mixtures

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def smiles(self) -> list[str]:
        """Canonical SMILES, (n,)."""
        return [key.smiles for key in self.keys]

    @property
    def num_acyclic(self) -> int:
        """Molecules without a ring: they have no scaffold to be grouped by."""
        return sum(not key.scaffold for key in self.keys)

    @cached_property
    def content(self) -> tuple[str, ...]:
        """Each molecule's content as text; it doesn't depend on where the molecule stands."""
        years = zip(self.years, self.last_years, strict=True)
        facts = zip(self.keys, self.labels, years, self.assays, strict=True)
        return tuple(
            "\t".join([key.smiles, row.tobytes().hex(), f"{first} {last}", *assays])
            for key, row, (first, last), assays in facts
        )

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The molecules sorted by content: equal tables agree on it, whatever their order."""
        return np.array(sorted(range(len(self)), key=self.content.__getitem__), dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the content: tables with the same rows in any order share it."""
        lines = ["\t".join(self.tasks), *(self.content[i] for i in self.order)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def describe_merging(self) -> str:
        """How many rows became how many molecules, and what was lost on the way."""
        merged = self.rows_read - len(self.skipped) - len(self)
        lost = int(self.conflicts.sum())
        return (
            f"{self.rows_read} rows: {len(self.skipped)} skipped, {self.fragments_removed} "
            f"stripped of salts or solvents, {merged} merged into a molecule already named; "
            f"{len(self)} molecules, {self.num_acyclic} without a ring, {lost} labels in "
            "conflict"
        )


# %%
def build_molecule_table(
    rows: MoleculeRows, options: MoleculeOptions | None = None
) -> MoleculeTable:
    """Standardize every row, then merge the rows of each molecule.

    Raises:
        UserError: naming source and row, if a row has no valid SMILES or an infinite label, or
            if the columns don't have a value for every row.
    """
    options = options or MoleculeOptions()
    columns = _MoleculeColumns(rows)
    standardize = molecule_standardizer(tautomer=options.tautomer, stereo=options.stereo)
    groups: dict[str, list[int]] = {}
    keys: dict[int, MoleculeKeys] = {}
    skipped = []
    for index, text in enumerate(rows.smiles):
        try:
            keys[index] = standardize(text)
        except UserError as error:
            message = f"{columns.place(index)}: {error}."
            if options.on_bad == "raise":
                raise UserError(
                    f"{message} Without a structure the row can't be split or featurized. Fix "
                    "the row, or pass on_bad='skip' to leave it out and count it."
                ) from None
            skipped.append(message)
            continue
        name = keys[index].smiles if options.merge else str(index)
        groups.setdefault(name, []).append(index)
    if not groups:
        raise UserError(
            f"{rows.source}: {len(rows.smiles)} rows, none with a molecule. There is nothing "
            "to train on. Check that the SMILES column is the right one."
        )
    members = list(groups.values())
    merged = [columns.merge(each, options) for each in members]
    return MoleculeTable(
        ids=tuple(columns.ids[each[0]] for each in members),
        rows=tuple(columns.numbers[each[0]] for each in members),
        keys=tuple(keys[each[0]] for each in members),
        labels=np.stack([labels for labels, _ in merged]),
        tasks=tuple(rows.tasks),
        years=np.array([np.fmin.reduce(columns.years[each]) for each in members]),
        last_years=np.array([np.fmax.reduce(columns.years[each]) for each in members]),
        assays=tuple(columns.assays_of(each) for each in members),
        conflicts=np.stack([conflicts for _, conflicts in merged]),
        rows_read=len(rows.smiles),
        skipped=tuple(skipped),
        fragments_removed=sum("." in rows.smiles[index] for index in keys),
    )


class _MoleculeColumns:
    """The columns of MoleculeRows as arrays, checked: one value for each row."""

    def __init__(self, rows: MoleculeRows) -> None:
        count = len(rows.smiles)
        self.source = rows.source
        self.numbers = list(rows.numbers) or list(range(1, count + 1))
        self.ids = list(rows.ids) or [f"{rows.source}:{number}" for number in self.numbers]
        self.assays = list(rows.assays) or [""] * count
        unknown = np.full(count, np.nan)
        self.years = unknown if rows.years is None else np.array(rows.years, np.float64)
        empty = np.zeros((count, len(rows.tasks)))
        # Adding zero turns -0.0 into 0.0, which has other bytes and the same value.
        labels = np.array(empty if rows.labels is None else rows.labels, np.float32) + 0
        self.labels: Labels = np.where(np.isnan(labels), np.float32("nan"), labels)
        sizes = [len(self.numbers), len(self.ids), len(self.assays), len(self.years)]
        if self.labels.shape != (count, len(rows.tasks)) or sizes != [count] * 4:
            raise UserError(
                f"{self.source}: {count} SMILES, labels of shape {self.labels.shape} for "
                f"{len(rows.tasks)} tasks, and columns of {sizes} rows. A value would belong "
                "to another molecule. Give every column one value per row."
            )
        if np.isinf(self.labels).any():
            row, task = np.argwhere(np.isinf(self.labels))[0]
            raise UserError(
                f"{self.place(row)}: label {rows.tasks[task]} is infinite, and one such row "
                "makes the loss infinite. Use NaN where nothing was measured."
            )

    def place(self, index: int) -> str:
        """Where a row is, for a message."""
        return f"{self.source}, row {self.numbers[index]}"

    def assays_of(self, members: list[int]) -> tuple[str, ...]:
        """The assays that measured a molecule, each once."""
        return tuple(sorted({self.assays[index] for index in members} - {""}))

    def merge(
        self, members: list[int], options: MoleculeOptions
    ) -> tuple[Labels, NDArray[np.bool_]]:
        """The labels of a molecule, and where its rows disagree; both (t,)."""
        values = self.labels[members]
        measured = ~np.isnan(values)
        low = np.where(measured, values, np.inf).min(axis=0)
        high = np.where(measured, values, -np.inf).max(axis=0)
        spread = np.where(measured.any(axis=0), high - low, 0)
        conflicts = spread > options.tolerance
        if conflicts.any() and options.on_conflict == "raise":
            places = ", ".join(str(self.numbers[index]) for index in members)
            raise UserError(
                f"{self.source}, rows {places}: one molecule with different labels. Nothing "
                "in the file says which one is right. Fix the rows, or pass "
                "on_conflict='missing' or 'mean'."
            )
        total = np.where(measured, values, 0).sum(axis=0, dtype=np.float64)
        # Equal values stay what they are; their mean could be rounded.
        mean = np.where(spread == 0, low, total / np.maximum(measured.sum(axis=0), 1))
        is_missing = ~measured.any(axis=0) | (conflicts & (options.on_conflict == "missing"))
        return np.where(is_missing, np.nan, mean).astype(np.float32), conflicts

"""What does a row of a molecule table say, and which rows can't be trusted?

Part of the biotech track. It reads CSV files in MoleculeNet's layouts, other tables with a
SMILES column, and .smi files, as a stream; ``chembl.py`` reads ChEMBL extracts. An empty cell
is a label that was never measured: NaN, and not 0.

    t  tasks (columns of labels)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

# %% active="py"
from trainer_core.bio.config import OnBad
from trainer_core.bio.delimited import BadRows, ReadReport, RowFault, number_in
from trainer_core.bio.delimited import table_rows
from trainer_core.bio.text_lines import decoded_lines
from trainer_core.settings import UserError


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class MoleculeRow:
    """One row as it was read; the SMILES hasn't been parsed yet."""

    number: int  # line in the file, as an editor counts; the header is 1
    smiles: str
    labels: tuple[float, ...] = ()  # (t,), NaN where nothing was measured
    id: str = ""
    year: float = math.nan
    assay: str = ""
    bound: int = 0  # 0: measured; 1: the true label is at least this; -1: at most


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """Which column holds what.

    Args:
        tasks: the label columns; None takes all columns but ``smiles``, ``id`` and ``others``.
        year: when each row was measured; an empty cell is unknown.
        kind: binary labels are 0 or 1; real ones any finite number.
        missing: spellings of "not measured".
    """

    smiles: str = "smiles"
    tasks: tuple[str, ...] | None = ()
    id: str | None = None
    year: str | None = None
    others: tuple[str, ...] = ()
    kind: Literal["binary", "real"] = "binary"
    missing: frozenset[str] = frozenset({""})

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must be there."""
        return (self.smiles, *(self.tasks or ()), *filter(None, (self.id, self.year)))


# The columns of the files that MoleculeNet distributes.
MOLECULENET = {
    "tox21": TableLayout(tasks=None, id="mol_id"),
    "toxcast": TableLayout(tasks=None),
    "sider": TableLayout(tasks=None),
    "clintox": TableLayout(tasks=("FDA_APPROVED", "CT_TOX")),
    "muv": TableLayout(tasks=None, id="mol_id"),
    "bbbp": TableLayout(tasks=("p_np",), id="name"),
    "hiv": TableLayout(tasks=("HIV_active",)),
    "bace": TableLayout(smiles="mol", tasks=("Class",), id="CID"),
    "freesolv": TableLayout(tasks=("expt",), id="iupac", kind="real"),
    "lipophilicity": TableLayout(tasks=("exp",), id="CMPD_CHEMBLID", kind="real"),
    "esol": TableLayout(
        tasks=("measured log solubility in mols per litre",), id="Compound ID", kind="real"
    ),
}

# The table that ships with the track; see data/README.md.
SHIPPED_DRUGS = Path(__file__).parent / "data" / "drugs.csv"
DRUGS = TableLayout(id="name", year="year")


# %%
class RowReader(Protocol):
    """A file of molecules as a stream of rows."""

    path: Path
    tasks: tuple[str, ...]

    @property
    def report(self) -> ReadReport: ...

    def __iter__(self) -> Iterator[MoleculeRow]: ...


# %%
class MoleculeTableReader:
    """A CSV file with a SMILES column, as a stream; gzip is fine.

    Args:
        layout: one of ``MOLECULENET``'s, or your own.
        on_bad: ``skip`` drops rows that can't be read, and counts them in ``report``.

    Raises:
        UserError: on iteration, naming the file and the row.
    """

    def __init__(self, path: Path, layout: TableLayout, *, on_bad: OnBad = "raise") -> None:
        self.path = path
        self.layout = layout
        self.on_bad = on_bad
        self.report = ReadReport()
        _, columns = next(table_rows(path, layout.required, BadRows(path, "raise")))
        known = {layout.smiles, layout.id, layout.year, *layout.others}
        rest = tuple(name for name in columns if name not in known)
        self.tasks = rest if layout.tasks is None else layout.tasks

    def __iter__(self) -> Iterator[MoleculeRow]:
        bad = BadRows(self.path, self.on_bad)
        self.report = bad.report
        rows = table_rows(self.path, self.layout.required, bad)
        _, columns = next(rows)
        for number, fields in rows:
            try:
                row = self._row(number, dict(zip(columns, fields, strict=True)))
            except RowFault as fault:
                bad(number, str(fault))
                continue
            bad.report.kept += 1
            yield row

    def _row(self, number: int, cells: dict[str, str]) -> MoleculeRow:
        smiles = cells[self.layout.smiles].strip()
        if not smiles:
            raise RowFault(
                "no SMILES. A label without a molecule can't be trained. Add it, or remove "
                "the row"
            )
        labels = tuple(self._label(name, cells[name].strip()) for name in self.tasks)
        name = cells[self.layout.id] if self.layout.id else ""
        when = cells[self.layout.year].strip() if self.layout.year else ""
        year = number_in(when, self.layout.year or "") if when else math.nan
        return MoleculeRow(number=number, smiles=smiles, labels=labels, id=name, year=year)

    def _label(self, column: str, cell: str) -> float:
        if cell in self.layout.missing:
            return math.nan
        value = number_in(cell, column)
        if self.layout.kind == "binary" and value not in (0, 1):
            raise RowFault(
                f"{column} is {cell}. A binary label is 0 or 1, and cross-entropy has no "
                "meaning for others. Fix it, or use a layout with kind='real'"
            )
        return value


# %%
class SmilesFileReader:
    """A .smi file: in each line a SMILES and, after white space, perhaps a name; no header."""

    tasks: tuple[str, ...] = ()

    def __init__(self, path: Path, *, on_bad: OnBad = "raise") -> None:
        self.path = path
        self.on_bad = on_bad
        self.report = ReadReport()

    def __iter__(self) -> Iterator[MoleculeRow]:
        bad = BadRows(self.path, self.on_bad)
        self.report = bad.report
        for number, line in decoded_lines(self.path, bad.undecodable):
            smiles, *name = line.split(maxsplit=1)[:2] or [""]
            if not smiles:
                continue
            bad.report.rows += 1
            bad.report.kept += 1
            yield MoleculeRow(number=number, smiles=smiles, id="".join(name).strip())


def as_columns(reader: RowReader) -> dict[str, Any]:
    """All rows, as the keyword arguments of ``molecules.MoleculeRows``. Holds them in memory.

    Raises:
        UserError: if every row was skipped.
    """
    rows = list(reader)
    if not rows:
        raise UserError(
            f"{reader.path}: {reader.report}. Nothing is left to train on. Fix the first "
            "fault, or pass the layout that matches the file."
        )
    labels = np.array([row.labels for row in rows], np.float64)
    return {
        "smiles": [row.smiles for row in rows],
        "labels": labels if reader.tasks else None,
        "tasks": reader.tasks,
        "ids": [row.id or f"row {row.number}" for row in rows],
        "numbers": [row.number for row in rows],
        "years": np.array([row.year for row in rows]),
        "assays": [row.assay for row in rows],
        "source": str(reader.path),
    }

"""What did the assay measure: unit, relation, and whether the number is only a bound?

Part of the biotech track. It reads activity tables exported from ChEMBL. Concentrations become
their negative logarithm, pX = -log10(mol/L), so 1 uM is 6. In these units a potent compound has
a high value, and the relation turns around: IC50 > 10 uM says that pIC50 is below 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# %% active="py"
from trainer_core.bio.config import OnBad
from trainer_core.bio.delimited import BadRows, ReadReport, RowFault, number_in
from trainer_core.bio.delimited import table_rows
from trainer_core.bio.tables import MoleculeRow
from trainer_core.settings import UserError

# %%
REQUIRED = (
    *("molecule_chembl_id", "canonical_smiles", "standard_type", "standard_relation"),
    *("standard_value", "standard_units", "assay_chembl_id", "document_year"),
)
# The website's export writes "Molecule ChEMBL ID", and calls one column differently.
ALIASES = {"smiles": "canonical_smiles"}
# log10 of a unit in mol/L. Others, such as ug.mL-1 or %, can't be converted without more facts.
LOG_MOLAR = {"M": 0, "mM": -3, "uM": -6, "nM": -9, "pM": -12, "fM": -15}
# What the relation of a concentration says of its pX. "About" counts as measured.
RELATIONS = {
    "=": "=",
    "~": "=",
    ">": "<",
    ">>": "<",
    ">=": "<=",
    "<": ">",
    "<<": ">",
    "<=": ">=",
}


def plain_header(line: str) -> str:
    """The header with ChEMBL's database names, whichever export wrote it."""
    plain = line.lower().replace(" ", "_")
    for name, known in ALIASES.items():
        plain = plain.replace(f'"{name}"', f'"{known}"')
    for mark in ",;\t":
        cells = [ALIASES.get(cell.strip(), cell) for cell in plain.split(mark)]
        plain = mark.join(cells)
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ChemblOptions:
    """Which activities to take, and what a censored one is worth.

    Args:
        standard_types: measures to keep; each is a task. Rows of other types are counted.
        active_above: makes labels binary: 1 for pX >= this. A censored value still gives a
            label if it lies on one side: IC50 > 10 uM is inactive at 6, and unknown at 4.5.
        censored: without ``active_above``, what '>' and '<' leave. ``missing`` (NaN): nothing.
            ``bound``: the bound as the label, with ``MoleculeRow.bound`` for a censored loss.
            As a plain regression target, a bound is wrong.
    """

    standard_types: Sequence[str] = ("IC50", "Ki", "Kd", "EC50")
    active_above: float | None = None
    censored: Literal["missing", "bound"] = "missing"


class ChemblReader:
    """A ChEMBL activity table (CSV, semicolons or tabs; gzip is fine), as a stream.

    Raises:
        UserError: on iteration, naming the file and the row.
    """

    def __init__(
        self, path: Path, options: ChemblOptions | None = None, *, on_bad: OnBad = "raise"
    ) -> None:
        self.path = path
        self.options = options or ChemblOptions()
        self.on_bad = on_bad
        self.tasks = tuple(self.options.standard_types)
        self.report = ReadReport()

    def __iter__(self) -> Iterator[MoleculeRow]:
        bad = BadRows(self.path, self.on_bad)
        self.report = bad.report
        rows = table_rows(self.path, REQUIRED, bad, plain_header)
        _, columns = next(rows)
        for number, fields in rows:
            cells = {name: cell.strip() for name, cell in zip(columns, fields, strict=True)}
            if cells["standard_type"] not in self.tasks:
                bad.report.other_measures += 1
                continue
            try:
                row = self._row(number, cells)
            except RowFault as fault:
                bad(number, str(fault))
                continue
            bad.report.kept += 1
            yield row
        if not (bad.report.kept or bad.report.skipped):
            raise UserError(
                f"{self.path}: none of its {bad.report.rows} rows is of type "
                f"{', '.join(self.tasks)}. Nothing is left to train on. Pass the types that it "
                "has as standard_types."
            )

    def _row(self, number: int, cells: dict[str, str]) -> MoleculeRow:
        if not cells["canonical_smiles"]:
            raise RowFault(
                f"{cells['molecule_chembl_id']} has no SMILES (a biologic?). A label without a "
                "molecule can't be trained. Remove the row"
            )
        potency, relation = potency_of(cells)
        label, bound = self._label(potency, relation)
        labels = [math.nan] * len(self.tasks)
        labels[self.tasks.index(cells["standard_type"])] = label
        year = cells["document_year"]
        return MoleculeRow(
            number=number,
            smiles=cells["canonical_smiles"],
            labels=tuple(labels),
            id=cells["molecule_chembl_id"],
            year=number_in(year, "document_year") if year else math.nan,
            assay=cells["assay_chembl_id"],
            bound=bound,
        )

    def _label(self, potency: float, relation: str) -> tuple[float, int]:
        threshold = self.options.active_above
        if threshold is None:
            bound = {"<": -1, "<=": -1, ">": 1, ">=": 1}.get(relation, 0)
            if bound and self.options.censored == "missing":
                return math.nan, 0
            return potency, bound
        # A bound decides only if all that it leaves open lies on one side of the threshold.
        open_sides = {
            "=": potency >= threshold,
            "<": False if potency <= threshold else math.nan,
            "<=": False if potency < threshold else math.nan,
        }
        return float(open_sides.get(relation, True if potency >= threshold else math.nan)), 0


def potency_of(cells: dict[str, str]) -> tuple[float, str]:
    """The pX in a row, and how the true pX relates to it: "=", "<", "<=", ">" or ">=".

    Raises:
        RowFault: for a value, unit or relation that has no reading.
    """
    relation = cells["standard_relation"].strip("'")
    if relation not in RELATIONS:
        raise RowFault(
            f"standard_relation is {relation!r}. It must be one of {' '.join(RELATIONS)}: "
            "without it, a bound can't be told from a measurement. Fix it or remove the row"
        )
    units = cells["standard_units"].replace("\N{MICRO SIGN}", "u")
    units = units.replace("\N{GREEK SMALL LETTER MU}", "u")
    if units not in LOG_MOLAR:
        raise RowFault(
            f"standard_units is {units!r}. It must be one of {', '.join(LOG_MOLAR)}: other "
            "units can't be compared on one scale. Convert it or remove the row"
        )
    value = number_in(cells["standard_value"], "standard_value")
    if value <= 0:
        raise RowFault(
            f"standard_value is {cells['standard_value']}. A concentration is positive, and "
            "this one has no logarithm. Fix it or remove the row"
        )
    # Adding 0.0 turns -0.0, for exactly 1 M, into 0.0.
    return -(math.log10(value) + LOG_MOLAR[units]) + 0.0, RELATIONS[relation]

"""Which rows of a delimited text file can be read, and what becomes of the others?

Supports the biotech track's tables. A bad row is refused by file, row and rule in one line, or
skipped on request, and counted.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# %% active="py"
from trainer_core.bio.config import OnBad
from trainer_core.bio.text_lines import decoded_lines
from trainer_core.settings import UserError

# %%
DELIMITERS = (",", ";", "\t")


@dataclass(slots=True)
class ReadReport:
    """What became of a file's rows; complete once it has been read to the end."""

    rows: int = 0
    kept: int = 0
    skipped: int = 0
    other_measures: int = 0  # of a ChEMBL extract: rows of a type that wasn't asked for
    first_faults: tuple[str, ...] = ()  # up to five

    def __str__(self) -> str:
        parts = [f"{self.kept} of {self.rows} rows kept, {self.skipped} skipped"]
        if self.other_measures:
            parts.append(f"{self.other_measures} of other types")
        return "; ".join([", ".join(parts), *self.first_faults])


class BadRows:
    """Raises at the first bad row, or counts it if skipping was asked for."""

    def __init__(self, path: Path, on_bad: OnBad) -> None:
        self.path = path
        self.skips = on_bad == "skip"
        self.report = ReadReport()

    def __call__(self, number: int, fault: str) -> None:
        """``fault``: what was found, the rule and the consequence, without a final period."""
        message = f"{self.path}, row {number}: {fault}"
        if not self.skips:
            raise UserError(f"{message}, or pass on_bad='skip' to drop and count such rows.")
        self.report.skipped += 1
        if len(self.report.first_faults) < 5:
            self.report.first_faults += (message.partition(". ")[0],)

    def undecodable(self, number: int, fault: str) -> None:
        """For a line that isn't text. Without the header, none of the rows can be read."""
        self.report.rows += 1
        self.skips = self.skips and number > 1
        self(number, fault)


class RowFault(Exception):
    """What is wrong with a row; its reader adds the file and the number."""


# %%
def header_of(path: Path, line: str, required: Sequence[str]) -> tuple[list[str], str]:
    """The column names, and the delimiter under which the required ones are among them.

    Raises:
        UserError: if there is no such delimiter, or a name comes twice.
    """
    candidates = {mark: next(csv.reader([line], delimiter=mark), []) for mark in DELIMITERS}
    for mark, columns in candidates.items():
        if set(required) <= set(columns):
            twice = sorted({name for name in columns if columns.count(name) > 1})
            if twice:
                raise UserError(
                    f"{path}, row 1: column {twice[0]!r} comes twice. One of them would be "
                    "read as the label. Rename or remove it."
                )
            return columns, mark
    columns = max(candidates.values(), key=len)
    absent = [name for name in required if name not in columns]
    shown = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
    raise UserError(
        f"{path}, row 1: no column {', '.join(map(repr, absent))} under any delimiter (comma, "
        f"semicolon, tab). Without it no row can be read. The columns are: {shown}. Pass the "
        "layout that matches the file."
    )


def table_rows(
    path: Path, required: Sequence[str], bad: BadRows, rename: Callable[[str], str] = str
) -> Iterator[tuple[int, list[str]]]:
    """The header as row 1, then each row's number and fields, one for each column.

    Raises:
        UserError: for a file without rows, and for what ``header_of`` and ``bad`` raise.
    """
    lines = decoded_lines(path, bad.undecodable)
    _, first = next(lines, (1, ""))
    columns, delimiter = header_of(path, rename(first), required)
    yield 1, columns
    last = 1

    def rest() -> Iterator[str]:
        nonlocal last
        for last, line in lines:  # noqa: B007
            yield line

    # Strict: otherwise an unclosed quote swallows rows up to the next quote in the file.
    reader = csv.reader(rest(), delimiter=delimiter, strict=True)
    while True:
        start = last + 1
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise UserError(
                f"{path}, row {start}: {error}. Quotes must be closed, or rows run together. "
                "Export the file again."
            ) from None
        if not fields:  # a blank line
            continue
        bad.report.rows += 1
        if len(fields) != len(columns):
            bad(
                start,
                f"{len(fields)} fields, but the header has {len(columns)}. Labels would move "
                "to another column. Fix the row",
            )
            continue
        yield start, fields
    if not bad.report.rows:
        raise UserError(
            f"{path}: a header, and no rows. Training on it would end at once and report "
            "success. Export it again."
        )


def number_in(cell: str, column: str) -> float:
    """A cell as a finite number.

    Raises:
        RowFault: if it isn't one.
    """
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    raise RowFault(
        f"{column} is {cell!r}. It must be a finite number, or the loss becomes NaN. Fix it, "
        "or leave the cell empty if nothing was measured"
    )

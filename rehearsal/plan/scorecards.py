"""What mock interviews have left on the disk: HOME/interviews/NAME/scorecard.json.

A scorecard that is damaged, or of a newer format, is skipped, and one line says so. Folders
without one are interviews that nobody ended; the plan offers to go on with the newest.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.interviews.rubric import ROWS
from rehearsal.interviews.store import unfinished_ones
from rehearsal.session.schedule import day_of

FORMAT = 1
# What a damaged file may raise, whatever is in it.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError)


class Begun(NamedTuple):
    """A mock interview that hasn't ended."""

    seed: int
    minutes: float  # that it takes
    spent: float  # minutes of it so far
    began: float  # unix seconds


class Scorecard(NamedTuple):
    """One mock interview, and how it went."""

    name: str
    seed: int
    ended: float  # unix seconds
    minutes: float  # that it took
    marks: Mapping[str, float]  # 1 to 4, by rubric row

    @property
    def mark(self) -> float:
        """The mean of its rows, with the rubric's weights."""
        weights = {row: ROWS[row].weight if row in ROWS else 1 for row in self.marks}
        return sum(weights[r] * mark for r, mark in self.marks.items()) / sum(weights.values())


def read_scorecards(home: Path) -> tuple[list[Scorecard], list[str]]:
    """All scorecards, oldest first, and a line for each that can't be read."""
    found: list[Scorecard] = []
    problems: list[str] = []
    for path in sorted(home.glob("interviews/*/scorecard.json")):
        try:
            found.append(read_scorecard(path))
        except UNREADABLE as error:
            why = " ".join(str(error).split()) or type(error).__name__
            problems.append(f"Skipped {path}: it can't be read as a scorecard ({why}).")
    return sorted(found, key=lambda card: (card.ended, card.name)), problems


def read_begun() -> list[Begun]:
    """The mock interviews that can be continued, the newest first."""
    found: list[Begun] = []
    for store in unfinished_ones():
        with contextlib.suppress(*UNREADABLE):
            header = store.header()
            minutes, began = number(header["minutes"]), number(header["began"])
            day_of(began)  # raises if there is no such day
            found.append(Begun(int(header["seed"]), minutes, store.spent, began))
    return found


def read_scorecard(path: Path) -> Scorecard:
    """One scorecard.

    Raises:
        UNREADABLE: if it can't be read.
    """
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if int(data["format"]) > FORMAT:
        raise ValueError(
            f"it is of format {data['format']}, and this version knows {FORMAT}: update the "
            "package"
        )
    marks = {str(row["row"]): number(row["mark"]) for row in data["rows"]}
    if not marks or not all(1 <= mark <= 4 for mark in marks.values()):
        raise ValueError(f"its marks are {sorted(marks.values())}, and a mark is 1 to 4")
    ended = number(data["ended"])
    day_of(ended)  # raises if there is no such day
    minutes = number(data.get("spent_minutes", data["minutes"]))
    return Scorecard(path.parent.name, int(data["seed"]), ended, minutes, marks)


def number(value: Any) -> float:
    """A finite number. Raises ValueError or TypeError."""
    if isinstance(value, bool) or not math.isfinite(found := float(value)):
        raise ValueError(f"{value!r} is not a number")
    return found

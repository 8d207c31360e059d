"""What a look returns, and what all sources use to show it."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.incidents.evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BadLook(ValueError):
    """A source or a scope that doesn't exist; the clock hasn't moved."""


@dataclass(frozen=True)
class View:
    """One look: plain ``data``, ``str()`` for a terminal, and ``figure()`` for a notebook."""

    source: str
    scope: Mapping[str, Any]
    minutes: int
    data: Any
    text: str
    draw: Callable[[], Figure] | None = None

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def figure(self) -> Figure | None:
        """The picture, if this source has one."""
        return self.draw() if self.draw is not None else None

    def _repr_html_(self) -> str:
        text = preformatted(self.text)
        if self.draw is None:
            return text
        file = io.BytesIO()
        self.draw().savefig(file, format="png", transparent=True)
        image = base64.b64encode(file.getvalue()).decode()
        title = escape(f"{self.source}: the figures are in the table below")
        return (
            f'<img alt="{title}" style="max-width:100%" src="data:image/png;base64,{image}">'
            f"<details><summary>as text</summary>{text}</details>"
        )


def preformatted(text: str) -> str:
    """Text whose columns stay in line; too long a line scrolls."""
    return f'<pre style="white-space:pre;overflow-x:auto">{escape(text)}</pre>'


class Note(str):
    """A sentence that a notebook shows without quotes, and without breaking its words."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self)}</p>"


@dataclass(frozen=True)
class Outcome:
    """What a fix did: true if the symptom is gone and no new one appeared."""

    is_fixed: bool
    text: str

    def __bool__(self) -> bool:
        return self.is_fixed

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.text)}</p>"


class Shown(NamedTuple):
    """What a source's function returns."""

    data: Any
    text: str
    draw: Callable[[], Figure] | None = None


def rows_of(head: list[str], rows: list[list[Any]]) -> str:
    """A table with aligned columns."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def a_rank(evidence: Evidence, rank: Any) -> int:
    """The rank that a scope names. Raises BadLook."""
    if type(rank) is not int or rank not in evidence.ranks:
        ranks = ", ".join(map(str, evidence.ranks))
        raise BadLook(f"rank={rank!r}: there is no such rank here. The ranks are {ranks}.")
    return rank


def a_step(evidence: Evidence, step: Any) -> int:
    """The step that a scope names. Raises BadLook."""
    last = max((line["step"] for line in evidence.ledger), default=0)
    if type(step) is not int or not 1 <= step <= last:
        raise BadLook(f"step={step!r}: the ledger has steps 1 to {last}.")
    return step


def clock(moment: float) -> str:
    """A log's time of day."""
    return time.strftime("%H:%M:%S", time.gmtime(moment)) + f".{moment % 1:.3f}"[2:]


def shorten(text: str, most: int = 300) -> str:
    """The first line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + " ..."

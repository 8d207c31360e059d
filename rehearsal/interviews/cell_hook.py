"""Hands in the cells that somebody runs in a notebook; takes back what a cell lost.

Imports and constants wait until a function or a class uses them: most cells without either are
experiments, or the notebook's own.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from rehearsal.grading.typed import UNPARSABLE
from rehearsal.interviews.cells import bound_in, counted, is_wanted, made_in
from rehearsal.interviews.names import uses
from rehearsal.session.executions import cell_of


class Desk(Protocol):
    """Where cells are handed in."""

    @property
    def text(self) -> str:
        """All that has been handed in, as one text."""

    @property
    def needs(self) -> frozenset[str]:
        """The names that the graders call."""

    def accepts(self) -> bool:
        """Whether it takes anything right now. If not, it tells why."""

    def hand_in(self, text: str, cell: str | None) -> None:
        """Take a cell's text."""

    def set_aside(self, text: str) -> None:
        """A cell's text waits until another one uses it."""

    def has(self, cell: str) -> bool:
        """Whether something of this cell has been handed in."""

    def take_back(self, cell: str) -> None:
        """What was handed in of a cell isn't there anymore."""

    def failed(self, error: Exception) -> None:
        """Something of it failed."""


class Ran(NamedTuple):
    """A cell that was run.

    Args:
        text: what of it may count.
        cell: its id, if the front end gives one.
        number: as in In[9].
    """

    text: str
    cell: str | None
    number: int


class CellHook:
    """Hands in the cells that one IPython shell runs from now on."""

    def __init__(self, shell: Any, desk: Desk) -> None:
        self._shell, self._desk = shell, desk
        # The cell that begins the interview runs now; it isn't part of it.
        self._since = len(shell.user_ns.get("In", [""])) - 1
        self._waiting: list[Ran] = []
        self._last: Ran | None = None
        shell.events.register("post_run_cell", self.ended)

    def close(self) -> None:
        """Hand in no more. Harmless a second time."""
        if self.ended in self._shell.events.callbacks["post_run_cell"]:
            self._shell.events.unregister("post_run_cell", self.ended)

    def ended(self, result: Any) -> None:
        """A cell has ended, well or not."""
        if result.info is None or (result.execution_count or 0) <= self._since:
            return
        try:
            self._ran(result.info, result.execution_count)
        except Exception as error:  # raised here, it would appear below the cell
            self._desk.failed(error)

    def _ran(self, info: Any, number: int) -> None:
        made, cell = made_in(self._desk.text), cell_of(self._shell, info)
        text = counted(info.raw_cell, made, coachs_names(self._shell.user_ns))
        if text is None:
            self._take_back(cell)
            return
        ran = Ran(text, cell, number)
        if (
            self._last is not None and ran[:2] == self._last[:2]
        ):  # run once more, unchanged, it hasn't been typed again
            return
        if not self._desk.accepts():
            return
        used = uses(self._desk.text) | self._desk.needs
        if is_wanted(text, used, bound(self._desk.text)):
            self._hand_in(ran)
        else:
            self._take_back(cell)
            self._waiting.append(ran)
            self._desk.set_aside(text)

    def _hand_in(self, ran: Ran) -> None:
        self._forget(ran.cell)
        for each in [*self._used_by(ran.text), ran]:
            self._desk.hand_in(each.text, each.cell)
        self._last = ran

    def _used_by(self, text: str) -> Sequence[Ran]:
        """Those of the waiting cells that a text uses, or that these use, as they were run."""
        found, reading = list[Ran](), [self._desk.text, text]
        while reading:
            used = frozenset[str]().union(*map(uses, reading))
            has = frozenset[str]().union(*map(bound, reading))
            more = [each for each in self._waiting if is_wanted(each.text, used - has)]
            self._waiting = [each for each in self._waiting if each not in more]
            found += more
            reading = [each.text for each in more]
        return sorted(found, key=lambda each: each.number)

    def _take_back(self, cell: str | None) -> None:
        """A cell has nothing anymore that counts."""
        self._forget(cell)
        if cell is not None and self._desk.has(cell) and self._desk.accepts():
            self._desk.take_back(cell)
            self._last = None

    def _forget(self, cell: str | None) -> None:
        self._waiting = [each for each in self._waiting if cell is None or each.cell != cell]


def bound(text: str) -> frozenset[str]:
    """The names that a text defines or imports; none if it doesn't parse."""
    try:
        return bound_in(ast.parse(text).body)
    except UNPARSABLE:
        return frozenset()


def coachs_names(namespace: dict[str, Any]) -> frozenset[str]:
    """The names in a notebook that are this package's: functions, modules, an interview."""
    return frozenset(name for name, value in namespace.items() if is_coachs(value))


def is_coachs(value: Any) -> bool:
    """Whether something is of this package, without the kit that a trainer may use."""
    if isinstance(value, types.ModuleType):
        home = value.__name__
    elif isinstance(value, type | types.FunctionType):
        home = value.__module__
    else:
        home = type(value).__module__
    parts = (home or "").split(".")
    return parts[0] == "rehearsal" and parts[1:2] != ["kit"]

"""What the ranks of one job recorded, as plain data.

A judge reads this and nothing else: no live process, no tensor, none of the learner's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class Blank(Exception):
    """Needed names that still raise NotImplementedError, as in the blank."""


class Mismatch(Exception):
    """Needed names that are missing or take different arguments: pairs of name and reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A signal that a rank sends itself when it records its ``count``-th event of a kind.

        Fault(rank=1, at="optimizer_step", count=3)           # dies after its third step
        Fault(rank=None, at="file", count=2, signal="TERM")   # each rank, at its 2nd file event

    Args:
        rank: None for every rank.
        at: a kind of event (``events.py`` lists them, and a body may record its own).
    """

    rank: int | None
    at: str
    count: int
    signal: Literal["KILL", "TERM", "STOP"] = "KILL"

    @classmethod
    def after_step(cls, count: int, *, rank: int | None) -> Fault:
        """Kill ``rank`` after its ``count``-th optimizer step."""
        return cls(rank=rank, at="optimizer_step", count=count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception that the learner's code raised."""

    kind: str  # the exception's class
    message: str
    traceback: str
    where: str = ""  # "line 12 in shard", in the learner's text


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """One rank of one job."""

    rank: int
    exitcode: int | None  # negative for a signal; None if it was still running at the deadline
    answer: Any = None  # what the scenario's body returned, as JSON
    failure: Failure | None = None
    blank: Sequence[str] = ()  # names that still raise NotImplementedError
    mismatch: Sequence[tuple[str, str]] = ()  # needed names, and what is wrong with each
    has_answer: bool = False
    stacks: str = ""  # where its main thread was stuck at the deadline
    output: str = ""
    events: Sequence[dict[str, Any]] = field(default=())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """The collectives it issued, DDP's included, as torch's flight recorder saw them.

        Each has a name ("all_reduce"), elements, bytes and the group.
        """
        return self.of("collective")


def killed(report: RankReport) -> bool:
    """Whether a signal ended the rank."""
    return report.exitcode is not None and report.exitcode < 0

"""What the ranks of one job wrote down, as plain data.

A grader reads this and nothing else: no live process, no tensor, not the learner's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class Blank(Exception):
    """Needed names that are as the blank has them."""


class Mismatch(Exception):
    """Needed names that are missing or take other arguments: pairs of name and fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A signal that a rank sends itself when it records its ``count``-th event of a kind.

    Args:
        rank: which one; None for all.
        at: ``optimizer_step`` (after it), ``file`` (before an open, rename, ... in the folder),
            ``torn`` (in the middle of a torch.save), or a kind that the scenario records.
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
    """An exception that left the learner's code."""

    kind: str  # the exception's class
    message: str
    traceback: str
    where: str = ""  # "line 12 in shard", in the learner's text


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """One rank of one job."""

    rank: int
    exitcode: int | None  # negative for a signal; None if it was still running at the deadline
    answer: Any = None  # what the scenario's body returned, as JSON has it
    failure: Failure | None = None
    blank: Sequence[str] = ()  # names that are still as the blank has them
    mismatch: Sequence[tuple[str, str]] = ()  # needed names: and what is wrong with them
    has_answer: bool = False
    stacks: str = ""  # where each of its threads stood at the deadline
    output: str = ""
    events: Sequence[dict[str, Any]] = field(default=())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """The collectives that it issued: name ("all_reduce"), elements, bytes, group.

        As torch's flight recorder saw them, those of DDP included.
        """
        return self.of("collective")


def killed(report: RankReport) -> bool:
    """Whether a signal ended the rank."""
    return report.exitcode is not None and report.exitcode < 0

"""What a history consists of: entries, which make up rounds, answers and notes. Plain data.

entry    a start, an attempt, a hint or a solution that was shown
round    the entries of one drill, up to its next start or a pause of half a day
answer   what was said to one card of the deck, and how well
note     what a person has said about their plan: the interview's date, a chapter that is read
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

PAUSE_S = 12 * 3600.0  # after it, a new round begins
Kind = Literal["start", "attempt", "hint", "solution"]
Grade = Literal["again", "hard", "good", "easy"]  # how well it went, as spaced repetition asks
Found = Literal["covered", "missed", "contradicted"]


class Entry(NamedTuple):
    """One line of the history."""

    at: float
    drill: str
    kind: Kind
    status: str = ""
    findings: Sequence[Sequence[str]] = ()
    seconds: float = 0.0
    text: str = ""


class Answer(NamedTuple):
    """An answer to one card of the deck, with the learner's last word on it."""

    at: float
    card: str
    grade: Grade
    points: Mapping[str, Found]  # by point id; of a spoken answer, those that were marked
    text: str = ""  # what was typed; empty if it was only spoken
    seconds: float = 0.0  # from the question to the end of the answer


class Note(NamedTuple):
    """What a person has said about their plan."""

    at: float
    what: str  # interview, minutes, read, unread
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One go at one drill."""

    entries: Sequence[Entry]

    @property
    def drill(self) -> str:
        """The drill's id."""
        return self.entries[0].drill

    @property
    def began(self) -> float:
        """When it began, in unix seconds."""
        return self.entries[0].at

    @property
    def is_timed(self) -> bool:
        """Whether it began with ``start``, so that its pace means something."""
        return self.entries[0].kind == "start"

    def of(self, kind: Kind) -> list[Entry]:
        """Its entries of one kind."""
        return [entry for entry in self.entries if entry.kind == kind]

    @property
    def passed(self) -> Entry | None:
        """The first attempt that passed."""
        return next((entry for entry in self.of("attempt") if entry.status == "passed"), None)

    @property
    def gave_up(self) -> bool:
        """Whether the solution was shown before a pass."""
        return any(entry.status == "gave_up" for entry in self.of("solution"))

    @property
    def until(self) -> float:
        """When it ended, in unix seconds: at the pass, or else at its last entry."""
        return (self.passed or self.entries[-1]).at


def rounds_of(entries: Iterable[Entry]) -> list[Round]:
    """Group a history into rounds, in the order in which they began."""
    rounds: list[list[Entry]] = []
    open_round: dict[str, list[Entry]] = {}
    for entry in entries:
        current = open_round.get(entry.drill)
        if current is None or entry.kind == "start" or entry.at > current[-1].at + PAUSE_S:
            current = open_round[entry.drill] = []
            rounds.append(current)
        current.append(entry)
    return [Round(entries=entries) for entries in rounds]

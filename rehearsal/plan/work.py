"""What a plan is made from and what it consists of: plain data. Every day is a local one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, NamedTuple

from rehearsal.plan.route import LAST_HOUR, Step

ItemKind = Literal["cards", "drill", "page", "incident", "interview"]
LEAST_MINUTES, MOST_MINUTES = 10, 600  # of a day
FINAL_DAYS = 2  # before the interview: nothing new


class DrillState(NamedTuple):
    """A drill, and where a person stands with it."""

    id: str
    minutes: float
    due: date | None = None  # None before a round has ended
    last: date | None = None  # the last day on which it was tried
    is_passed: bool = False


class CardState(NamedTuple):
    """A card, and when it is due; None if it was never answered."""

    id: str
    topic: str
    due: date | None = None


class BegunState(NamedTuple):
    """A mock interview that was begun, and hasn't ended."""

    on: date
    minutes_left: float


class WeakRow(NamedTuple):
    """A row of the rubric that needs practice, and where to practice it."""

    name: str
    mark: float
    steps: Sequence[Step]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """All that a plan depends on."""

    today: date
    minutes: int  # of a day
    interview: date | None = None
    first_day: date | None = None  # of practice
    spent: float = 0.0  # minutes practiced today
    drills: Sequence[DrillState] = ()
    cards: Sequence[CardState] = ()
    card_minutes: float = 2.0
    read: Mapping[str, date] = field(default_factory=dict)  # pages
    route: Sequence[Step] = ()
    weak: Sequence[WeakRow] = ()  # weakest first
    last_incident: date | None = None
    last_interview: date | None = None
    begun: BegunState | None = None  # the newest

    @property
    def days_left(self) -> int | None:
        """Days until the interview; 0 on the day itself, None without a date to come."""
        if self.interview is None or self.interview < self.today:
            return None
        return (self.interview - self.today).days

    @property
    def is_final(self) -> bool:
        """Whether the interview is so near that nothing new makes sense."""
        return self.days_left is not None and self.days_left <= FINAL_DAYS

    @property
    def is_beginner(self) -> bool:
        """Whether nothing has been read or passed: then reviews alone are an empty day."""
        has_passed = any(drill.is_passed for drill in self.drills)
        return not has_passed and not {*self.read} - {LAST_HOUR}

    @property
    def is_long_day(self) -> bool:
        """Whether something longer than the day's minutes may have this day to itself."""
        return self.today.toordinal() % 2 == 0


class Item(NamedTuple):
    """One thing to do."""

    kind: ItemKind
    name: str  # a drill, a page, a topic; empty: the cards that are due, of any topic
    why: str
    minutes: int
    cards: int = 0  # how many, in a block of cards
    is_due: bool = False  # for review

    @property
    def key(self) -> tuple[str, str]:
        """What a plan has only once."""
        return self.kind, self.name


class TooMuch(NamedTuple):
    """More new material than fits before the interview."""

    need_minutes: int
    room_minutes: int
    steps: Sequence[Step]  # that won't fit
    minutes_a_day: int  # with which all would fit; 0 if no day is long enough


class Plan(NamedTuple):
    """What to do today."""

    items: Sequence[Item]
    due_cards: int
    due_drills: int
    too_much: TooMuch | None

    @property
    def minutes(self) -> int:
        """Of all items."""
        return sum(item.minutes for item in self.items)


class Day:
    """A day that is being filled.

    Args:
        room: the minutes that it has.
    """

    def __init__(self, room: float) -> None:
        self.room = room
        self.items: dict[tuple[str, str], Item] = {}

    @property
    def left(self) -> float:
        """Minutes without an item."""
        return self.room - sum(item.minutes for item in self.items.values())

    def has(self, *kinds: ItemKind) -> bool:
        """Whether it has an item of one of these kinds."""
        return any(item.kind in kinds for item in self.items.values())

    def add(self, item: Item | None) -> bool:
        """Add it if it fits and isn't there yet; whether it was added."""
        if item is None or item.key in self.items or item.minutes > self.left:
            return False
        self.items[item.key] = item
        return True


def days_ago(day: date, today: date) -> str:
    """A past day in a few words."""
    days = (today - day).days
    return {0: "today", 1: "yesterday"}.get(days, f"{days} days ago")

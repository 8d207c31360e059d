"""What a person asks of their plan: the interview's date, the minutes of a day, a page read.

Each wish is checked first, and becomes a note in the history if it changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import NamedTuple

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.plan.lines import mark
from rehearsal.plan.record import Record
from rehearsal.plan.route import PAGES, page_named
from rehearsal.plan.work import LEAST_MINUTES, MOST_MINUTES

FURTHEST_DAYS = 366
NO_DATE = "none"


class BadPlan(PlainMessage, ValueError):
    """A date or a number of minutes that no plan can be made for; nothing has changed."""


class Wish(NamedTuple):
    """A note to keep, and what to say about it."""

    what: str
    value: str
    words: str


def date_wish(record: Record, wanted: str | date, today: date) -> Iterator[Wish]:
    """Keep the interview's date, or that there is none.

    Raises:
        BadPlan: if it is no date, in the past, or too far away.
    """
    before = record.interview
    if str(wanted).strip().lower() == NO_DATE:
        if before is not None:
            words = f"No interview date anymore; it was {before.isoformat()}."
            yield Wish("interview", NO_DATE, words)
        return
    day = a_date(wanted)
    days = (day - today).days
    if days < 0:
        raise BadPlan(
            f"{day.isoformat()} is in the past: today is {today.isoformat()}. A plan needs the "
            "day of an interview to come; nothing was changed."
        )
    if days > FURTHEST_DAYS:
        raise BadPlan(
            f"{day.isoformat()} is {days} days away. A plan looks a year ahead at most, so it "
            "may be a typo; nothing was changed."
        )
    if day != before:
        was = "" if before is None else f"; it was {before.isoformat()}"
        yield Wish("interview", day.isoformat(), f"Interview date: {day.isoformat()}{was}.")


def a_date(wanted: str | date) -> date:
    """A date from what was typed. Raises BadPlan."""
    if isinstance(wanted, datetime):
        return wanted.date()
    if isinstance(wanted, date):
        return wanted
    try:
        return date.fromisoformat(str(wanted).strip())
    except ValueError:
        raise BadPlan(
            f"{wanted!r} is not a date. Write year, month and day, such as 2026-12-04, or "
            f"{NO_DATE} if there is no interview; nothing was changed."
        ) from None


def minutes_wish(record: Record, minutes: int) -> Iterator[Wish]:
    """Keep how many minutes a day has. Raises BadPlan if no day can be planned with them."""
    if isinstance(minutes, bool) or not isinstance(minutes, int):
        raise BadPlan(f"minutes={minutes!r}: must be a whole number; nothing was changed.")
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise BadPlan(
            f"{minutes} minutes a day: a plan needs {LEAST_MINUTES} to {MOST_MINUTES}; nothing "
            "was changed."
        )
    if minutes != record.minutes:
        words = f"Minutes a day: {minutes}; it was {record.minutes}."
        yield Wish("minutes", str(minutes), words)


def read_wish(record: Record, page: str) -> Iterator[Wish]:
    """Mark a page as read; a page may be read again. Raises UnknownPage."""
    name = page_named(page)
    words = f"Marked as read: {PAGES[name].title}. To undo it: {mark(name, 'unread')}."
    yield Wish("read", name, words)


def unread_wish(record: Record, page: str) -> Iterator[Wish]:
    """Mark a page as unread. Raises UnknownPage."""
    name = page_named(page)
    if name in record.read:
        yield Wish("unread", name, f"Marked as unread: {PAGES[name].title}.")

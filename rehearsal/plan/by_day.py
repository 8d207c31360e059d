"""Progress over time: what was known at the end of each day, as plain data for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

from rehearsal.deck.standings import CardStanding
from rehearsal.plan.record import Record, minutes_by_day
from rehearsal.session.schedule import day_of, dues_after

MOST_DAYS = 90


class ByDay(NamedTuple):
    """One value for each day, unless it says otherwise."""

    days: Sequence[date]
    passed: Sequence[int]  # drills that were ever passed
    known: Sequence[int]  # cards that are answered, not with "again", and not due
    minutes: Sequence[float]
    incidents: Sequence[tuple[date, float]]  # a mark from 1 to 4 for each, when it ended
    interviews: Sequence[tuple[date, float]]


def by_day(record: Record, today: date) -> ByDay:
    """From the first day of practice, or 90 days ago, to ``today``."""
    minutes = minutes_by_day(record, [one.drill for one in record.drills])
    first = min([*minutes, *(day_of(one.began) for one in record.rounds), today])
    first = max(first, today - timedelta(days=MOST_DAYS))
    days = [first + timedelta(days=n) for n in range((today - first).days + 1)]
    passes = [
        min(day_of(one.passed.at) for one in standing.rounds if one.passed)
        for standing in record.drills
        if standing.is_passed
    ]
    spans = [span for standing in record.cards for span in known_spans(standing)]
    return ByDay(
        days,
        [sum(day >= at for at in passes) for day in days],
        [sum(start <= day < end for start, end in spans) for day in days],
        [minutes.get(day, 0.0) for day in days],
        [(day_of(at), case.mark) for at, case in record.ended_cases],
        [(day_of(card.ended), card.mark) for card in record.interviews],
    )


def known_spans(standing: CardStanding) -> list[tuple[date, date]]:
    """From which day to which a card was known, the second not included.

    Spaced repetition makes a card due when the chance to know it falls below 90%.
    """
    answers = standing.answers
    if not answers:
        return []
    dues = dues_after([(answer.at, answer.grade) for answer in answers])
    ends = [day_of(answer.at) for answer in answers[1:]] + [date.max]
    return [
        (day_of(answer.at), min(day_of(due), end))
        for answer, due, end in zip(answers, dues, ends, strict=True)
        if answer.grade != "again"
    ]

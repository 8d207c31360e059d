"""What a person has done and said so far: the history, incidents and mock interviews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from statistics import median

from rehearsal.deck.cards import Card
from rehearsal.deck.standings import CardStanding, card_standings
from rehearsal.grading.drill import Drill
from rehearsal.plan.cases import Case, read_cases
from rehearsal.plan.route import PAGES, route_of
from rehearsal.plan.scorecards import Begun, Scorecard, read_begun, read_scorecards
from rehearsal.plan.strengths import Strength, strengths_of, weak_rows
from rehearsal.plan.work import BegunState, CardState, DrillState, Work
from rehearsal.session.history import Answer, Note, Round
from rehearsal.session.progress import Progress
from rehearsal.session.schedule import Standing, day_of, standings

MINUTES = 90  # of a day, until somebody says otherwise
CARD_MINUTES = 1.5  # until there are enough answers to know better
READING_S = 30.0  # of the strong answer, after one's own
ENOUGH_ANSWERS, NEWEST_ANSWERS = 5, 50
LONGEST_ANSWER_S = 300.0  # longer, and nobody was at the keyboard


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """All that has been done, oldest first."""

    drills: Sequence[Standing]
    cards: Sequence[CardStanding]
    rounds: Sequence[Round]
    answers: Sequence[Answer]
    notes: Sequence[Note]
    cases: Sequence[Case]
    interviews: Sequence[Scorecard]
    begun: Sequence[Begun]  # interviews that haven't ended, the newest first
    problems: Sequence[str]  # a line for each thing that can't be read

    @property
    def strengths(self) -> list[Strength]:
        """A mark for each row of the rubric."""
        cards = [standing.card for standing in self.cards]
        return strengths_of(self.interviews, self.cases, self.drills, cards, self.answers)

    def newest(self, what: str) -> str | None:
        """The newest note of a kind."""
        return next((n.value for n in reversed(self.notes) if n.what == what), None)

    @property
    def interview(self) -> date | None:
        """The interview's date, past or to come."""
        try:
            return date.fromisoformat(self.newest("interview") or "")
        except ValueError:
            return None

    @property
    def minutes(self) -> int:
        """Of a day."""
        kept = self.newest("minutes") or ""
        return int(kept) if kept.isdecimal() and int(kept) else MINUTES

    @property
    def read(self) -> dict[str, date]:
        """The pages that have been read, and when last."""
        found: dict[str, date] = {}
        for note in self.notes:
            if note.what == "read" and note.value in PAGES:
                found[note.value] = day_of(note.at)
            elif note.what == "unread":
                found.pop(note.value, None)
        return found

    @property
    def ended_cases(self) -> list[tuple[float, Case]]:
        """The incidents that have been debriefed, with the time of that."""
        return [(case.ended, case) for case in self.cases if case.ended is not None]


def read_record(history: Progress, drills: Sequence[Drill], cards: Sequence[Card]) -> Record:
    """Read everything below the history's folder."""
    home = history.path.parent
    rounds, answers = history.rounds(), history.answers()
    cases, bad_cases = read_cases(home)
    interviews, bad_interviews = read_scorecards(home)
    return Record(
        drills=standings(drills, rounds),
        cards=card_standings(cards, answers),
        rounds=rounds,
        answers=answers,
        notes=history.notes(),
        cases=cases,
        interviews=interviews,
        begun=read_begun(),
        problems=[*bad_cases, *bad_interviews],
    )


def minutes_by_day(record: Record, drills: Sequence[Drill]) -> dict[date, float]:
    """Minutes practiced on each day.

    Measured where it can be: between the entries of a drill's round (a gap longer than the
    drill's budget counts as the budget), from a card's question to the end of the answer,
    between what was done in an incident, and what an interview's clock says. A page
    counts the minutes that it says it takes, on the day on which it was marked as read.
    """
    found: dict[date, float] = {}

    def add(at: float, minutes: float) -> None:
        found[day_of(at)] = found.get(day_of(at), 0.0) + minutes

    budget_s = {drill.id: 60 * drill.minutes for drill in drills}
    for one in record.rounds:
        for before, after in pairwise(one.entries):
            longest = budget_s.get(one.drill, LONGEST_ANSWER_S)
            add(after.at, min(max(0.0, after.at - before.at), longest) / 60)
    for answer in record.answers:
        add(answer.at, min(max(0.0, answer.seconds), LONGEST_ANSWER_S) / 60)
    for at, case in record.ended_cases:
        add(at, case.minutes)
    for card in record.interviews:
        add(card.ended, card.minutes)
    for page, day in record.read.items():
        found[day] = found.get(day, 0.0) + PAGES[page].minutes
    return found


def card_minutes(answers: Sequence[Answer]) -> float:
    """Minutes for a card at this person's pace: answering it, and reading the strong answer."""
    taken = [
        min(a.seconds, LONGEST_ANSWER_S) for a in answers[-NEWEST_ANSWERS:] if a.seconds > 0
    ]
    if len(taken) < ENOUGH_ANSWERS:
        return CARD_MINUTES
    return (median(taken) + READING_S) / 60


def begun_of(record: Record) -> BegunState | None:
    """The newest interview that hasn't ended."""
    if not record.begun:
        return None
    newest = record.begun[0]
    return BegunState(day_of(newest.began), max(0.0, newest.minutes - newest.spent))


def work_of(record: Record, today: date) -> Work:
    """What a plan for ``today`` depends on."""
    drills = [
        DrillState(
            id=one.drill.id,
            minutes=one.drill.minutes,
            due=None if one.due is None else day_of(one.due),
            last=day_of(one.rounds[-1].until) if one.rounds else None,
            is_passed=one.is_passed,
        )
        for one in record.drills
    ]
    cards = [
        CardState(one.card.id, one.card.topic, None if one.due is None else day_of(one.due))
        for one in record.cards
    ]
    by_day = minutes_by_day(record, [one.drill for one in record.drills])
    return Work(
        today=today,
        minutes=record.minutes,
        interview=record.interview,
        first_day=min([*by_day, *(day_of(one.began) for one in record.rounds)], default=None),
        spent=by_day.get(today, 0.0),
        drills=drills,
        cards=cards,
        card_minutes=card_minutes(record.answers),
        read=record.read,
        route=route_of([d.id for d in drills], dict.fromkeys(c.topic for c in cards)),
        weak=weak_rows(record.strengths),
        last_incident=max((day_of(at) for at, _ in record.ended_cases), default=None),
        begun=begun_of(record),
        last_interview=max((day_of(card.ended) for card in record.interviews), default=None),
    )

"""Where are you strong, and where weak? A mark from 1 to 4 for each row of the rubric.

A row's mark is a weighted mean of what has been observed about it:

    weight 3   its mark in a mock interview; of these, the newest three
    weight 1   of the newest three incidents, each row of their scores that belongs to it
    weight 1   each drill that practices it: again 1, hard 2, good 3, easy 4, by its last round
    weight 1   each topic that practices it, once three of its cards have been answered: the
               mean of their last grades, as above

Interviews count most, because the rubric is theirs: a drill says that you can do something, an
interview that you did it in time, while talking. A row without any observation has no mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rehearsal.deck.cards import Card
from rehearsal.interviews.rubric import RUBRIC, RubricRow
from rehearsal.plan.cases import Case, as_mark
from rehearsal.plan.route import Step
from rehearsal.plan.scorecards import Scorecard
from rehearsal.plan.work import WeakRow
from rehearsal.session.history import Answer, Grade
from rehearsal.session.schedule import Standing, grade_of

INTERVIEW_WEIGHT = 3.0
NEWEST = 3
LEAST_CARDS = 3
GOOD_ENOUGH = 3.0  # "yes"; below it, a row is weak
MARK_OF: Mapping[Grade, float] = {"again": 1, "hard": 2, "good": 3, "easy": 4}
# Which row of the rubric a row of an incident's score says something about.
INCIDENT_ROWS = {
    "ignored the misleading symptom": "debugs",
    "found the root cause": "debugs",
    "told the whole chain": "debugs",
    "fixed the right layer": "failures",
}


class Strength(NamedTuple):
    """A row of the rubric, and what is known about it."""

    row: RubricRow
    mark: float | None  # 1 to 4; None without evidence
    seen: Mapping[str, int]  # how many interviews, incidents, drills and topics say so

    @property
    def total(self) -> int:
        """How many observations there are."""
        return sum(self.seen.values())

    @property
    def evidence(self) -> str:
        """What they are, in words."""
        words = [
            f"{count} {what.removesuffix('s') if count == 1 else what}"
            for what, count in self.seen.items()
            if count
        ]
        return ", ".join(words) or "no evidence yet"


def strengths_of(
    interviews: Sequence[Scorecard],
    cases: Iterable[Case],
    drills: Iterable[Standing],
    cards: Iterable[Card],
    answers: Iterable[Answer],
) -> list[Strength]:
    """One for each row, in the rubric's order.

    Args:
        interviews: oldest first, like the cases and the answers.
    """
    ended = [case for case in cases if case.grades][-NEWEST:]
    marks = {one.drill.id: mark for one in drills if (mark := drill_mark(one)) is not None}
    topics = topic_marks(cards, answers)
    found = []
    for row in RUBRIC:
        of = {
            "interviews": [c.marks[row.id] for c in interviews[-NEWEST:] if row.id in c.marks],
            "incidents": [mark for case in ended for mark in case_marks(case, row.id)],
            "drills": [marks[name] for name in row.practice.drills if name in marks],
            "topics": [topics[name] for name in row.practice.topics if name in topics],
        }
        weights = {name: INTERVIEW_WEIGHT if name == "interviews" else 1.0 for name in of}
        total = sum(weights[name] * len(values) for name, values in of.items())
        mean = sum(weights[n] * sum(values) for n, values in of.items()) / total if total else 0
        seen = {name: len(values) for name, values in of.items()}
        seen["incidents"] = sum(bool(list(case_marks(case, row.id))) for case in ended)
        found.append(Strength(row, mean if total else None, seen))
    return found


def case_marks(case: Case, row: str) -> list[float]:
    """What an incident says about a row of the rubric."""
    return [
        as_mark(grade) for name, grade in case.grades.items() if INCIDENT_ROWS.get(name) == row
    ]


def drill_mark(standing: Standing) -> float | None:
    """How its last round that ended went."""
    grades = [grade_of(one, standing.drill.minutes) for one in standing.rounds]
    return next((MARK_OF[grade] for grade in reversed(grades) if grade is not None), None)


def topic_marks(cards: Iterable[Card], answers: Iterable[Answer]) -> dict[str, float]:
    """The mean of each topic of which enough cards have been answered."""
    last = {answer.card: answer.grade for answer in answers}
    of: dict[str, list[float]] = {}
    for card in cards:
        if card.id in last:
            of.setdefault(card.topic, []).append(MARK_OF[last[card.id]])
    return {t: sum(marks) / len(marks) for t, marks in of.items() if len(marks) >= LEAST_CARDS}


def weak_rows(strengths: Iterable[Strength]) -> list[WeakRow]:
    """The rows below "yes", weakest first, with where to practice them."""
    weak = [each for each in strengths if each.mark is not None and each.mark < GOOD_ENOUGH]
    return [
        WeakRow(each.row.name, each.mark or 0.0, steps_for(each.row))
        for each in sorted(weak, key=lambda each: each.mark or 0.0)
    ]


def steps_for(row: RubricRow) -> list[Step]:
    """Where to practice a row: read, then do, then say."""
    return [
        *(Step("page", name) for name in row.practice.chapters),
        *(Step("drill", name) for name in row.practice.drills),
        *(Step("cards", name) for name in row.practice.topics),
    ]

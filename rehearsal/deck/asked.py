"""A question that was asked: the answer, what was found in it, and the learner's last word."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import get_args

from rehearsal.deck.cards import Card
from rehearsal.deck.examiner import Examiner
from rehearsal.deck.judge import Coverage, judge
from rehearsal.deck.standings import suggested_grade
from rehearsal.session.history import Answer, Found, Grade
from rehearsal.session.progress import progress
from rehearsal.session.schedule import due_after, words_until

FOUND: tuple[Found, ...] = get_args(Found)
GRADES: tuple[Grade, ...] = get_args(Grade)


class Asked:
    """A card that is being answered. It goes into the history when it is graded.

    Args:
        card: the question.
        began: when it was asked, in unix seconds; now, by default.
        examiner: a language model, if there is one. What it says decides nothing.
    """

    def __init__(
        self, card: Card, began: float | None = None, examiner: Examiner | None = None
    ) -> None:
        self.card = card
        self.examiner = examiner
        self.began = time.time() if began is None else began
        self.text = ""
        self.seconds = 0.0
        self.coverage: Coverage | None = None
        self.points: dict[str, Found] = {}  # as judged or marked; without those that weren't
        self.graded: Answer | None = None
        self._told = ""

    def answer(self, text: str | None) -> None:
        """Take the answer; None if it was only spoken, and the learner marks the points."""
        self.seconds = time.time() - self.began
        if text is None:
            return
        self.text = text.strip()
        self.coverage = judge(self.card, self.text)
        for found in FOUND:
            self.points |= dict.fromkeys(getattr(self.coverage, found), found)

    def correct(self, point: str, found: Found) -> None:
        """The learner knows better about one point."""
        self.points[point] = found

    @property
    def because(self) -> Mapping[str, str]:
        """The words that decided about a point, by its id."""
        return self.coverage.because if self.coverage else {}

    def is_as_judged(self, point: str) -> bool:
        """Whether words of the answer decided about a point, and the learner agrees."""
        if self.coverage is None or point not in self.because:
            return False
        return point in getattr(self.coverage, self.points[point])

    @property
    def suggested(self) -> Grade | None:
        """The grade that the points come to; None if none of them is marked.

        After the first mark, what isn't marked counts as not said.
        """
        if not self.points:
            return None
        return suggested_grade([self.points.get(p.id, "missed") for p in self.card.points])

    def second_opinion(self) -> Mapping[str, Found] | None:
        """What the language model finds about each point. Takes seconds."""
        if self.examiner is None or not self.text:
            return None
        return self.examiner.opinion(self.card, self.text)

    def follow_up(self) -> str | None:
        """A question of the language model's to what was typed. Takes seconds."""
        if self.examiner is None or not self.text:
            return None
        return self.examiner.follow_up(self.card, self.text)

    def rephrased(self) -> str | None:
        """The question in the language model's words. Takes seconds."""
        return None if self.examiner is None else self.examiner.rephrased(self.card)

    @property
    def problem(self) -> str:
        """Why the language model doesn't answer, in one line; empty if it does."""
        return self.examiner.problem if self.examiner else ""

    def new_problem(self) -> str:
        """The same, but only once."""
        problem, told = self.problem, self._told
        self._told = problem
        return "" if problem == told else problem

    def grade(self, grade: Grade) -> str:
        """Put it into the history. Once: a second click must not count as a second answer.

        Returns:
            When the card is due again, in words.
        """
        if self.graded is None:
            self.graded = Answer(
                time.time(), self.card.id, grade, self.points, self.text, self.seconds
            )
            progress().add_answer(self.graded)
        answers = progress().answers(self.card.id)
        due = due_after([(answer.at, answer.grade) for answer in answers])
        return words_until(due or self.graded.at, self.graded.at)

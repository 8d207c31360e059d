"""Which card is due, and which comes next: a pure function of the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rehearsal.deck.cards import Card
from rehearsal.session.history import Answer, Grade
from rehearsal.session.schedule import due_after, words_until


@dataclass(frozen=True, kw_only=True, slots=True)
class CardStanding:
    """One card, and how a person is doing at it."""

    card: Card
    answers: Sequence[Answer]
    due: float | None  # unix seconds; None before the first answer

    def words(self, now: float) -> str:
        """Its status in a few words."""
        return "new" if self.due is None else words_until(self.due, now)


def card_standings(cards: Iterable[Card], answers: Iterable[Answer]) -> list[CardStanding]:
    """One for each card, in the given order."""
    by_card: dict[str, list[Answer]] = {}
    for answer in answers:
        by_card.setdefault(answer.card, []).append(answer)
    return [
        CardStanding(
            card=card,
            answers=(own := by_card.get(card.id, [])),
            due=due_after([(answer.at, answer.grade) for answer in own]),
        )
        for card in cards
    ]


def next_card(standings: Sequence[CardStanding], now: float) -> CardStanding | None:
    """The card that has been due for the longest, else the first new one.

    None if nothing is due and none is new.
    """
    due = [each for each in standings if each.due is not None and each.due <= now]
    if due:
        return min(due, key=lambda each: each.due or 0.0)
    return next((each for each in standings if each.due is None), None)


def suggested_grade(points: Sequence[str]) -> Grade:
    """How well an answer went, from what was found about each of its points.

    again   less than half of the points were covered, or one was contradicted
    hard    at least half
    good    all but one, of four or more
    easy    all
    """
    covered = sum(found == "covered" for found in points)
    if "contradicted" in points or 2 * covered < len(points):
        return "again"
    if covered == len(points):
        return "easy"
    return "good" if covered == len(points) - 1 and len(points) >= 4 else "hard"

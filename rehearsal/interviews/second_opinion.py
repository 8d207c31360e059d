"""A language model listens in, if the environment names one: it asks on, and judges points too.

What it finds is shown next to the matcher's, and marked as a second opinion: it counts for
nothing. See rehearsal/deck/examiner.py for what is sent, and what happens if it fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rehearsal.deck.cards import Card
from rehearsal.deck.examiner import Examiner, examiner

PATIENCE = 0.25  # minutes that the interviewer waits for its question


class SecondOpinion:
    """Asks about each answer, in the background.

    Args:
        done: called with what an event keeps.
        waits: ask before ``hear`` returns, for a program that drives the clock.
    """

    def __init__(self, done: Callable[[dict[str, Any]], None], *, waits: bool) -> None:
        self._done, self._waits = done, waits
        self._model: Examiner | None = examiner()
        self._last: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return self._model is not None

    def hear(self, card: Card, text: str) -> None:
        """An answer was given."""
        if self._waits:
            self._ask(card, text)
            return
        self._last = threading.Thread(target=self._ask, args=(card, text), daemon=True)
        self._last.start()

    def wait(self, at_most_s: float) -> bool:
        """Wait for the last answer's; False if it hasn't come by then."""
        if self._last is None:
            return True
        self._last.join(at_most_s)
        return not self._last.is_alive()

    def _ask(self, card: Card, text: str) -> None:
        assert self._model is not None
        points = self._model.opinion(card, text)
        question = self._model.follow_up(card, text) if points is not None else None
        self._done(
            {
                "card": card.id,
                "points": dict(points) if points is not None else {},
                "question": question or "",
                "problem": self._model.problem,
            }
        )

"""The end of an interview: it waits for the graders, and keeps the marks.

Until the last event is written, it can be called back: an interrupt leaves a session that is
paused, and that can be continued or ended again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from rehearsal.interviews.checks import Graders
from rehearsal.interviews.on_call import OnCall
from rehearsal.interviews.record import Record
from rehearsal.interviews.scorecard import Scorecard, scorecard_of
from rehearsal.interviews.second_opinion import SecondOpinion
from rehearsal.interviews.stopwatch import Stopwatch
from rehearsal.interviews.store import Event, Store, event_of

SOON_S = 0.5  # after which somebody wants to know what takes so long
LAST_CHECK_S = 90.0
LAST_OPINION_S = 10.0
GRADING = (
    f"Grading your draft, {LAST_CHECK_S:.0f} seconds at most. An interrupt (Ctrl-C) takes you "
    "back to the interview, paused."
)
UNGRADED = (
    f"The graders needed more than {LAST_CHECK_S:.0f} seconds, so the marks rest on what they "
    "had found before."
)


class Parts(NamedTuple):
    """The parts of a session that its end has to do with."""

    store: Store
    record: Record
    watch: Stopwatch
    graders: Graders
    second: SecondOpinion
    on_call: OnCall


class Ending:
    """Ends a session, once.

    Args:
        minutes: how long it was meant to be.
        turn: held by whatever else changes the session.
        tell: says what takes so long, or what an interrupt has broken off.
    """

    def __init__(
        self,
        parts: Parts,
        minutes: float,
        turn: AbstractContextManager[Any],
        tell: Callable[[str], None],
    ) -> None:
        self._parts, self._minutes, self._turn, self._tell = parts, minutes, turn, tell
        self._alone = threading.Lock()
        self._is_called_back = parts.graders.nobody_waits

    @property
    def is_going_on(self) -> bool:
        """Whether the graders finish with it right now."""
        return self._alone.locked() and not self._parts.record.is_over

    def run(self, why: str) -> None:
        """End it; wait, if another thread does. An interrupt leaves it paused, or over."""
        if self.is_going_on:
            self._tell(GRADING)
        with self._alone:
            record, watch = self._parts.record, self._parts.watch
            if record.is_over:
                return
            was_running = watch.is_running
            self._is_called_back.clear()
            try:
                with self._turn:  # what somebody says right now still counts
                    watch.stop()
                self._wait()
                if self._is_called_back.is_set():
                    self._call_back(was_running)
                else:
                    self._finish(why)
            except KeyboardInterrupt:
                if not record.is_over:
                    self._call_back(was_running)
                raise

    def call_back(self) -> None:
        """Another thread ends it and waits: don't end it. Harmless if none does."""
        if self.is_going_on:
            self._is_called_back.set()

    def _wait(self) -> None:
        """Wait for what still runs. If that takes a moment, tell what it is."""
        graders, second = self._parts.graders, self._parts.second
        if graders.wait(SOON_S) and second.wait(SOON_S):
            return
        self._tell(GRADING)
        if not graders.wait(LAST_CHECK_S) and not self._is_called_back.is_set():
            self._tell(UNGRADED)
        if not self._is_called_back.is_set():
            second.wait(LAST_OPINION_S)

    def _finish(self, why: str) -> None:
        """Keep the marks, and only then that it is over."""
        store, record, watch, *_, on_call = self._parts
        last = list[Event]()
        if record.state.incident_at is not None:
            # With it, the marks follow from the events alone, on any machine.
            last.append(event_of("incident scored", watch.seconds, rows=on_call.score()))
        last.append(event_of("end", watch.seconds, why=why))
        card = scorecard_of(store.name, record.state_with(*last), self._minutes)
        store.keep_scorecard(kept_of(card, store.header()))
        for event in last:
            record.add(**event)
        store.release()

    def _call_back(self, was_running: bool) -> None:
        """Somebody doesn't want to wait: the clock stands still, and nothing has ended."""
        store, record, watch, *_ = self._parts
        if was_running:
            record.add("pause", watch.seconds)
        self._tell(
            f"Not ended: the interview {store.name} is paused at minute "
            f"{watch.seconds / 60:.0f} of {self._minutes:g}. resume() continues it, end() ends "
            "it."
        )


def kept_of(card: Scorecard, header: Mapping[str, Any]) -> dict[str, Any]:
    """What scorecard.json says.

    Args:
        header: what interview.json says.
    """
    return {
        "name": card.name,
        "ended": time.time(),
        "minutes": header["minutes"],
        "spent_minutes": round(card.minutes, 2),
        "seed": header["seed"],
        "mode": header["mode"],
        "percent": card.percent,
        "rows": [
            {
                "row": mark.row,
                "mark": mark.mark,
                "evidence": [one._asdict() for one in mark.evidence],
            }
            for mark in card.rows
        ],
        "weakest": list(card.weakest),
        "next": [dict(item) for item in card.next],
    }

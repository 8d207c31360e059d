"""How long a person has been at a drill, against its budget."""

from __future__ import annotations

import time

from rehearsal.grading.drill import Drill


class Clock:
    """The time since ``start``, until it is stopped."""

    def __init__(self, drill: Drill) -> None:
        # Not the monotonic clock: a laptop's sleep counts, as it does in the history.
        self.drill, self.began = drill, time.time()
        self.stopped_at: float | None = None

    @property
    def text(self) -> str:
        """Time used and the budget."""
        now = time.time() if self.stopped_at is None else self.stopped_at
        return pace(now - self.began, self.drill.minutes)

    @property
    def is_running(self) -> bool:
        """Whether nobody has stopped it."""
        return self.stopped_at is None

    def stop(self) -> None:
        """Freeze it at the time it shows."""
        if self.stopped_at is None:
            self.stopped_at = time.time()


def minutes_of(seconds: float) -> str:
    """Seconds as a clock shows them: 7:05, or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def pace(seconds: float, minutes: float) -> str:
    """Time used and the budget: "3:12 of 12:00", "12:40 of 12:00, 0:40 over"."""
    over = seconds - 60 * minutes
    text = f"{minutes_of(seconds)} of {minutes_of(60 * minutes)}"
    return f"{text}, {minutes_of(over)} over" if over >= 1 else text

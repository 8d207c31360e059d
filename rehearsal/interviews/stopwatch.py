"""The clock of an interview: it stops in a pause, and survives the process."""

from __future__ import annotations

from collections.abc import Callable

from rehearsal.interviews.store import Store

TICK_S = 5.0  # how often it's kept, in case the process dies


class Stopwatch:
    """Counts an interview's seconds, from where it was left. It runs from the beginning.

    Args:
        clock: returns seconds.
        spent: seconds that have passed already.
        most: seconds at which it stands still.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float], *, spent: float, most: float
    ) -> None:
        self._store, self._clock, self._most = store, clock, most
        self._spent = self._kept = spent
        self._since: float | None = clock()

    @property
    def seconds(self) -> float:
        """How far it is."""
        running = 0.0 if self._since is None else max(0.0, self._clock() - self._since)
        return float(min(self._spent + running, self._most))

    @property
    def is_running(self) -> bool:
        """Whether it counts now."""
        return self._since is not None

    def stop(self) -> None:
        """Stand still. Harmless if it does."""
        if self._since is not None:
            self._spent, self._since = self.seconds, None
            self._store.keep_clock(self._spent)

    def start(self) -> None:
        """Run again. Harmless if it does."""
        if self._since is None:
            self._since = self._clock()

    def tick(self) -> None:
        """Keep it now and then: after a crash, it continues from there."""
        if self.is_running and self.seconds - self._kept >= TICK_S:
            self._kept = self.seconds
            self._store.keep_clock(self._kept)

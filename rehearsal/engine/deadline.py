"""At a rank's deadline, record where it is stuck and which collectives it has issued."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from pathlib import Path


class Deadline:
    """Counts down in one rank.

    Args:
        stacks: the file for the stacks of its threads.
        record_collectives: called just before the deadline, if the GIL is free then.
    """

    def __init__(
        self, deadline_s: float, stacks: Path, record_collectives: Callable[[], None]
    ) -> None:
        self._deadline_s, self._record_collectives = deadline_s, record_collectives
        self._stacks = stacks.open("w")
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Start the countdown, or restart it from the full time."""
        # A watchdog in C: it reports even if the learner's loop never releases the GIL.
        faulthandler.dump_traceback_later(self._deadline_s, file=self._stacks)
        self.stop()
        timer = threading.Timer(max(0.0, self._deadline_s - 0.05), self._record_collectives)
        timer.daemon = True
        timer.start()
        self._timer = timer

    def stop(self) -> None:
        """The job has ended: record nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


current: Deadline | None = None  # this process's

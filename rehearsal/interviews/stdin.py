"""Lines from a file descriptor, without waiting for them: the interviewer may speak first."""

from __future__ import annotations

import os
import select
import time
from typing import Protocol


class Lines(Protocol):
    """Where lines come from."""

    is_at_end: bool

    def next(self, at_most_s: float) -> str | None:
        """The next line; None if none has come in time, or at the end."""


class LinesOf:
    """The lines of a terminal, a pipe or a file.

    Python's own buffer would keep lines that ``select`` can't see.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""
        self.is_at_end = False

    def next(self, at_most_s: float) -> str | None:
        """The next line, without its end; None if none has come in time, or at the end."""
        deadline = time.monotonic() + at_most_s
        while b"\n" not in self._rest and not self.is_at_end:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                return None
            found = os.read(self._descriptor, 1 << 16)
            self.is_at_end = not found
            self._rest += found
        if not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").rstrip("\r")

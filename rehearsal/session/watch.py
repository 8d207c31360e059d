"""Follow a file: its text now, and again each time somebody saves it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

POLL_S = 0.2


def saves_of(file: Path) -> Iterator[None]:
    """One item now, and one whenever the file has been saved since the last.

    Many editors save by renaming a new file over the old one, so for a moment there is none.
    """
    seen = signature_of(file)
    yield
    while True:
        time.sleep(POLL_S)
        now = signature_of(file)
        # A text that is still being written changes once more before the next look.
        if now is None or now == seen:
            continue
        time.sleep(POLL_S)
        if signature_of(file) == now:
            seen = now
            yield


def signature_of(file: Path) -> tuple[int, int, int] | None:
    """What changes with each save; None if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

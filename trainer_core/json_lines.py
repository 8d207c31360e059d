"""A file of JSON lines that a kill can't corrupt.

Supports cell 7 (metrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


# %%
class JsonlSink:
    """One JSON object per line, handed to the operating system at once: it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab+", buffering=0)
        # A kill may have truncated the last line; the next line must not continue it.
        self.file.seek(max(0, path.stat().st_size - 1))
        if self.file.read() not in (b"", b"\n"):
            self.file.write(b"\n")

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line. A kill may truncate it, but no other line."""
        line = json.dumps(record).encode() + b"\n"
        # One write, so one kill cuts one line. A full disk silently takes part of the line, and
        # raises only when asked to take the rest.
        while line:
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()

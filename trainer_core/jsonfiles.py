"""Files of JSON that a kill cannot spoil: one object a line, and a Chrome trace.

Leaned on by cell 7 (metrics). The trace opens in Perfetto and chrome://tracing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


# %%
class JsonlSink:
    """One JSON object a line, handed to the kernel at once: it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab+", buffering=0)
        # A kill may have cut the last line; the next one must not continue it.
        if (size := self.file.seek(0, 2)) and os.pread(
            self.file.fileno(), 1, size - 1
        ) != b"\n":
            self.file.write(b"\n")

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line in one write, so that a kill cuts no line but the last."""
        self.file.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TraceFile:
    """A Chrome trace of one rank that is valid after every write, also over several attempts.

    Args:
        path: the file; made on the first event.
        rank: shown as the process.
        attempt: kept with each event.
    """

    def __init__(self, path: Path, *, rank: int, attempt: int) -> None:
        self.path, self.rank, self.attempt = path, rank, attempt

    def append(self, step: int, events: Sequence[Mapping[str, Any]]) -> None:
        """Write a step's events, each with ``name``, and ``ts`` and ``dur`` in microseconds."""
        if not events:
            return
        common = {"ph": "X", "pid": self.rank, "tid": 0}
        common["args"] = {"step": step, "attempt": self.attempt}
        text = ",\n".join(json.dumps({**event, **common}) for event in events)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            # Up to the end of the last whole event: what a kill has cut is dropped.
            start = max(0, file.seek(0, 2) - 4096)
            file.seek(start)
            whole = file.read().rfind(b"}}") + 2
            file.truncate(start + whole if whole > 1 else 0)
            file.write((",\n" if whole > 1 else "[\n").encode() + text.encode() + b"\n]")

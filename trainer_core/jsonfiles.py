"""Files of JSON that a kill cannot spoil: one object a line, and a Chrome trace.

Leaned on by cell 7 (metrics). The trace opens in Perfetto and chrome://tracing.
"""

from __future__ import annotations

import json
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
        self.file.seek(max(0, path.stat().st_size - 1))
        if self.file.read() not in (b"", b"\n"):
            self.file.write(b"\n")

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line in one write, so that a kill cuts no line but the last."""
        line = json.dumps(record).encode() + b"\n"
        while line:  # a full disk takes a part without a word; for the rest it raises
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def append_trace(path: Path, events: Sequence[Mapping[str, Any]], **common: Any) -> None:
    """Add events to a Chrome trace, which is valid after every call, over several attempts too.

    Args:
        path: the file; made on the first event.
        events: each with ``name``, and ``ts`` and ``dur`` in microseconds.
        common: what all of them carry: ``pid``, and ``args``, a dict.
    """
    if not events:
        return
    text = ",\n".join(json.dumps({**event, "ph": "X", "tid": 0, **common}) for event in events)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        # Up to the end of the last whole event: what a kill has cut is dropped.
        start = max(0, file.seek(0, 2) - 4096)
        file.seek(start)
        whole = file.read().rfind(b"}}") + 2
        file.truncate(start + whole if whole > 1 else 0)
        file.write((",\n" if whole > 1 else "[\n").encode() + text.encode() + b"\n]")

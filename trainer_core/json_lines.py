"""A file of JSON lines that a kill cannot spoil.

Leaned on by cell 7 (metrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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

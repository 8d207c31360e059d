"""A Chrome trace that stays valid across kills and restarts; opens in Perfetto.

Supports cell 7 (metrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


# %%
def append_trace(path: Path, events: Sequence[Mapping[str, Any]], **common: Any) -> None:
    """Add events to a trace. The file is valid JSON after every call, across attempts too.

    Args:
        path: the file; the first event creates it.
        events: each with ``name``, and ``ts`` and ``dur`` in microseconds.
        common: fields of every event: ``pid``, and ``args``, a dict.
    """
    if not events:
        return
    entries = [{**event, "ph": "X", "tid": 0, **common} for event in events]
    text = ",\n".join(json.dumps(entry) for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        # Cut after the last complete event: a kill may have truncated the one after it.
        tail_start = max(0, file.seek(0, 2) - 4096)
        file.seek(tail_start)
        complete = file.read().rfind(b"}}") + 2
        has_events = complete > 1
        file.truncate(tail_start + complete if has_events else 0)
        separator = ",\n" if has_events else "[\n"
        file.write((separator + text + "\n]").encode())

"""A Chrome trace that stays valid across kills and restarts; opens in Perfetto.

Leaned on by cell 7 (metrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


# %%
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

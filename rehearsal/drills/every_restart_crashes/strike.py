"""Ends a rank in the middle of a write, or between two file operations. Runs in the ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from rehearsal.engine.rank import RankContext

WRITES = ("open", "torch.save")  # operations of "file" events


def strike(context: RankContext, count: int, data: bytes | None) -> None:
    """End this rank in its ``count``-th write to the folder; ``data`` is all that was written.

    If ``data`` is None: before its ``count``-th rename, removal or the like.
    """
    record: Callable[..., None] = context.record
    seen = 0

    def recorded(kind: str, **facts: Any) -> None:
        nonlocal seen
        record(kind, **facts)
        if kind != "file" or not facts["path"] or facts["op"] == "fsync":
            return
        if (facts["op"] in WRITES) != (data is not None):
            return
        seen += 1
        if seen == count:
            if data is not None:
                context.is_armed = False
                (context.folder / facts["path"]).write_bytes(data)
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(context, "record", recorded)  # noqa: B010 - mypy knows it as a method

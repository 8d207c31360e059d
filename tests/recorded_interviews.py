"""Recorded interviews for tests, written as a session writes them, without holding one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rehearsal.interviews.recorded import Recorded, read
from rehearsal.interviews.store import Store, folder_of_all

BEGAN = 1_767_261_600.0


def keep(
    name: str,
    *events: dict[str, Any],
    cells: tuple[str, ...] = (),
    folder: Path | None = None,
    **header: Any,
) -> Recorded:
    """Keep a session below the home of the test, or in a folder; ``at`` is in seconds."""
    store = Store((folder or folder_of_all()) / name)
    store.create(**{"minutes": 20, "seed": 1, "mode": "real", "began": BEGAN, **header})
    for text in cells:
        store.keep_cell(text)
    for event in events:
        store.add(**event)
    return read(store)


def line(at: float, kind: str, text: str, **facts: Any) -> dict[str, Any]:
    """Something that the interviewer says."""
    return {"did": "line", "at": at, "kind": kind, "text": text, **facts}


def say(at: float, text: str) -> dict[str, Any]:
    """Something that the candidate says."""
    return {"did": "say", "at": at, "text": text}


def ended(at: float = 1200.0) -> dict[str, Any]:
    """The end."""
    return {"did": "end", "at": at, "why": "time"}


def checked(at: float, status: str = "not_attempted", **facts: Any) -> dict[str, Any]:
    """A verdict about all that was typed."""
    found = {"drill": "live_trainer", "stages": ["config"], "next_stage": "data"}
    return {
        "did": "checked",
        "at": at,
        "file": "001.py",
        "status": status,
        "findings": [],
        **found,
        **facts,
    }

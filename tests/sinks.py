"""A sink for tests that look at a run's events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Collected:
    """A sink that keeps every event."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def emit(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass

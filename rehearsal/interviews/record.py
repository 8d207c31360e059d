"""A session so far: its events and cells, in memory and on disk, and what they come to."""

from __future__ import annotations

from typing import Any

from rehearsal.interviews.state import State, state_of
from rehearsal.interviews.store import Event, Store


class Record:
    """What has happened in a session; what its folder has of it is there at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.events = store.events()
        typed = [event["file"] for event in self.events if event["did"] == "type"]
        self.cells = {name: store.cell(name) for name in typed}

    def add(self, did: str, at: float, **facts: Any) -> None:
        """Something happened, at this second."""
        self.events.append(self._store.add(did, at, **facts))

    def add_cell(self, source: str) -> str:
        """A cell was typed; the name of its file."""
        name = self._store.keep_cell(source)
        self.cells[name] = source
        return name

    @property
    def last(self) -> float:
        """The second of the last event; 0 if there is none."""
        return max([event["at"] for event in self.events], default=0.0)

    @property
    def state(self) -> State:
        """What it has come to."""
        return self.state_with()

    def state_with(self, *more: Event) -> State:
        """What it would have come to if these happened as well."""
        return state_of([*self.events, *more], self.cells)

    @property
    def is_over(self) -> bool:
        """Whether the end is among the events."""
        return any(event["did"] == "end" for event in self.events)

    @property
    def unjudged(self) -> Event | None:
        """The last cell that was typed or taken back, if no verdict about it has come."""
        left: Event | None = None
        for event in self.events:
            if event["did"] in ("type", "take back"):
                left = event
            elif event["did"] == "checked" and left and event["file"] == left["file"]:
                left = None
        return left

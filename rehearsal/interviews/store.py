"""A session on disk: a folder of plain files, so it survives the process and can be replayed.

    HOME/interviews/NAME/interview.json    format, minutes, seed, mode, when it began
    HOME/interviews/NAME/events.jsonl      what was said, typed, asked and found: one per line
    HOME/interviews/NAME/typed/001.py ...  each cell, as it was typed
    HOME/interviews/NAME/clock             how far it is, in seconds, noted every few seconds
    HOME/interviews/NAME/incident/         the job of the incident
    HOME/interviews/NAME/scorecard.json    once it has ended

Events are only ever appended. ``at`` is in seconds on the interview's own clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.session.progress import home

if TYPE_CHECKING:
    from rehearsal.interviews.interviewer import Setting

FORMAT = 1
Event = dict[str, Any]


class BadInterview(PlainMessage, ValueError):
    """An interview that can't be held, opened or shown; nothing has changed."""


def event_of(did: str, at: float, **facts: Any) -> Event:
    """An event, as it is kept."""
    return {"did": did, "at": round(at, 3), **facts}


class Store:
    """One session's folder.

    Args:
        folder: where it is; it exists once ``create`` has run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self._lock_file: IO[str] | None = None
        self._mutex = threading.Lock()

    def create(self, **facts: Any) -> None:
        """Write interview.json: from now on the session exists."""
        home().mkdir(mode=0o700, parents=True, exist_ok=True)  # what you type is private
        (self.folder / "typed").mkdir(parents=True)
        header = {"format": FORMAT, **facts}
        _publish(self.folder / "interview.json", header)

    def header(self) -> dict[str, Any]:
        """What interview.json says.

        Raises:
            BadInterview: if it isn't there, isn't readable, or is from a newer version.
        """
        return _read(self.folder / "interview.json", ("minutes", "seed", "mode", "began"))

    @property
    def setting(self) -> Setting:
        """What the interview is about; those of an older version have none."""
        return "biotech" if self.header().get("setting") == "biotech" else "general"

    def scorecard(self) -> dict[str, Any] | None:
        """What scorecard.json says; None before the end. Raises BadInterview as ``header``."""
        path = self.folder / "scorecard.json"
        return _read(path, ("rows", "weakest", "ended")) if path.exists() else None

    def keep_scorecard(self, found: Mapping[str, Any]) -> None:
        """Write scorecard.json."""
        _publish(self.folder / "scorecard.json", {"format": FORMAT, **found})

    def events(self) -> list[Event]:
        """What has happened, in order. A line cut short by a kill is left out."""
        path = self.folder / "events.jsonl"
        return list(read_jsonl(path)) if path.exists() else []

    @property
    def spent(self) -> float:
        """Minutes on its clock so far."""
        return max([self.clock(), *(float(event["at"]) for event in self.events())]) / 60

    def has_ended(self) -> bool:
        """Whether it is over. The end is the last thing that is written of a session."""
        return any(event["did"] == "end" for event in self.events())

    def add(self, did: str, at: float, **facts: Any) -> Event:
        """Append an event."""
        event = event_of(did, at, **facts)
        with self._mutex, (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
        return event

    def keep_clock(self, at: float) -> None:
        """Note how far the interview's clock is."""
        (self.folder / "clock").write_text(f"{at:.1f}", "utf-8")

    def clock(self) -> float:
        """How far the clock was when it was last noted, in seconds."""
        try:
            return float((self.folder / "clock").read_text("utf-8"))
        except (OSError, ValueError):
            return 0.0

    def keep_cell(self, source: str) -> str:
        """Write a cell as it was typed; the name of its file."""
        taken = len(list((self.folder / "typed").glob("*.py")))
        name = f"{taken + 1:03}.py"
        (self.folder / "typed" / name).write_text(source, "utf-8")
        return name

    def cell(self, name: str) -> str:
        """A cell as it was typed; empty if its file is gone."""
        path = self.folder / "typed" / Path(name).name
        return path.read_text("utf-8") if path.exists() else ""

    def take(self) -> None:
        """Hold the session, so that no other process continues it.

        Raises:
            BadInterview: if another process holds it.
        """
        file = (self.folder / "lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise BadInterview(
                f"The interview {self.name} is open in another notebook or terminal, and two "
                "would mix their answers. Continue there, or end that process first; nothing "
                "was changed."
            ) from None
        self._lock_file = file
        self._end_the_last_line()

    def _end_the_last_line(self) -> None:
        """A line that a kill cut short must not swallow the next one."""
        path = self.folder / "events.jsonl"
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("a", encoding="utf-8") as events:
                events.write("\n")

    @property
    def is_taken(self) -> bool:
        """Whether this process holds the session."""
        return self._lock_file is not None

    def release(self) -> None:
        """Let another process continue it."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None


def folder_of_all() -> Path:
    """Where all sessions are."""
    return home() / "interviews"


def new_store(seed: int) -> Store:
    """A folder for a new session, named for today and the seed."""
    day, number = time.strftime("%Y-%m-%d"), 1
    while (folder_of_all() / f"{day}-seed{seed}-{number}").exists():
        number += 1
    return Store(folder_of_all() / f"{day}-seed{seed}-{number}")


def stores() -> Iterator[Store]:
    """All sessions, oldest first, whether they can be read or not."""
    found = [path for path in folder_of_all().glob("*") if (path / "interview.json").exists()]
    for path in sorted(found, key=lambda each: (each / "interview.json").stat().st_mtime_ns):
        yield Store(path)


def unfinished_ones() -> Iterator[Store]:
    """The sessions that can be continued, the newest first. A damaged one can't."""
    for store in reversed(list(stores())):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if not store.has_ended():
                store.header()
                yield store


def _publish(path: Path, found: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        number = int(found["format"])
        for name in needed:
            found[name]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadInterview(
            f"{path} can't be read ({type(error).__name__}: {error}), so this interview can't "
            "be opened. Move its folder away to begin a new one."
        ) from None
    if number > FORMAT:
        raise BadInterview(
            f"{path} is from a newer version (format {number}, this one reads {FORMAT}). "
            "Update the package to open it; nothing was changed."
        )
    return found

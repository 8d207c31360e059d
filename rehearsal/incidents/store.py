"""A case on disk: plain files below the home of the history, so it survives the process.

    HOME/incidents/SEED/case.json       format, seed, kind or "first+second", tier
    HOME/incidents/SEED/events.jsonl    looks, diagnoses, fixes, the postmortem: one per line,
                                        each with its time in unix seconds
    HOME/incidents/SEED/earlier/1, ...  case.json and events.jsonl from before each restart
    HOME/incidents/SEED/runs/0, 1, ...  the job, and the reruns after each fix
    HOME/incidents/biotech-SEED/...     the same for a case of the biotech track; its case.json
                                        says so, too

Events are only ever appended, so a notebook and a terminal may work on the same case.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.session.progress import home

FORMAT = 1
KEPT, EARLIER = ("case.json", "events.jsonl"), "earlier"
START_OVER = "To start over, pass restart=True (at a terminal, --restart)."
Event = dict[str, Any]


class BadCase(PlainMessage, ValueError):
    """A case that can't be opened, or a call that it can't answer; nothing has changed."""


class JobInterrupted(PlainMessage, KeyboardInterrupt):
    """A case's job was interrupted. Still a KeyboardInterrupt: no later cell runs."""


class Store:
    """The folder of one seed's case: below the home of the history, or another one."""

    def __init__(self, seed: int, folder: Path | None = None, track: str = "general") -> None:
        own = str(seed) if track == "general" else f"{track}-{seed}"
        self.folder = folder or home() / "incidents" / own
        self.seed, self.track = seed, track

    @property
    def name(self) -> str:
        """What to call the case: "incident 7", or "biotech incident 7"."""
        return ("" if self.track == "general" else f"{self.track} ") + f"incident {self.seed}"

    @property
    def runs(self) -> Path:
        """Where the jobs are."""
        return self.folder / "runs"

    def header(self) -> dict[str, Any] | None:
        """What case.json says; None if there is no case yet.

        Raises:
            BadCase: if it was written by a newer version, or isn't readable.
        """
        path = self.folder / "case.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
            number = int(found["format"])
            found["kind"], found["tier"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadCase(
                f"{path} can't be read ({type(error).__name__}: {error}), so the case can't "
                f"continue. {START_OVER}"
            ) from None
        if number > FORMAT:
            raise BadCase(
                f"{path} is from a newer version (format {number}, this one reads {FORMAT}). "
                f"Update the package to continue. {START_OVER}"
            )
        return found

    def create(self, kind: str, tier: str) -> None:
        """Write case.json: from now on the case exists."""
        self.folder.mkdir(parents=True, exist_ok=True)
        header = {"format": FORMAT, "seed": self.seed, "kind": kind, "tier": tier}
        if self.track != "general":
            header["track"] = self.track
        temporary = self.folder / "case.json.tmp"
        temporary.write_text(json.dumps(header), "utf-8")
        temporary.replace(self.folder / "case.json")

    def plan(self) -> str:
        """The plan of the job that alerted, as ``job.run_job`` wrote it; "" if it is gone."""
        path = self.runs / "0" / "plan.json"
        return path.read_text("utf-8") if path.exists() else ""

    def set_aside(self) -> None:
        """Make room for a new case: keep what was done in this one, and delete its jobs."""
        kept = [path for path in map(self.folder.joinpath, KEPT) if path.exists()]
        if kept:
            numbers = (int(path.name) for path in self.folder.glob(f"{EARLIER}/[0-9]*"))
            earlier = self.folder / EARLIER / f"{1 + max(numbers, default=0)}"
            earlier.mkdir(parents=True)
            for path in kept:
                path.rename(earlier / path.name)
        shutil.rmtree(self.runs, ignore_errors=True)

    def events(self) -> list[Event]:
        """What has been done, in order."""
        path = self.folder / "events.jsonl"
        return list(read_jsonl(path)) if path.exists() else []

    def add(self, did: str, **facts: Any) -> None:
        """Append an event."""
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"did": did, "at": time.time(), **facts}) + "\n")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other session runs a job of this case.

        Raises:
            BadCase: if one does.
            JobInterrupted: after Ctrl-C, or the notebook's stop button.
        """
        home().mkdir(mode=0o700, parents=True, exist_ok=True)  # what you type is private
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadCase(
                    f"Another session is running a job of {self.name} right now. Wait "
                    "until it is done, then try again; nothing was changed."
                ) from None
            try:
                yield
            except KeyboardInterrupt:
                raise JobInterrupted(
                    f"{self.name.capitalize()}: interrupted while its job ran. The ranks were "
                    "stopped, and this run doesn't count. To repeat it, do the same again."
                ) from None

"""What a person has tried, kept between kernels in one SQLite file of theirs.

Nothing leaves the machine: the file is the only copy, and ``forget()`` deletes it. A history is
a list of entries; all else (rounds, pace, what is due) is derived from it when asked for.

    entry   a start, an attempt, a hint that was opened, a solution that was opened
    round   the entries of one drill from a start to the next, or from one pause of
            half a day to the next where nobody called start
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rehearsal.grading.drill import current_id
from rehearsal.grading.verdict import Verdict, current_code

FILE = "progress.sqlite3"
VERSION = 1
PAUSE_S = 12 * 3600.0  # after it, what comes is another sitting
SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,           -- unix seconds
    drill TEXT NOT NULL,
    kind TEXT NOT NULL,         -- start, attempt, hint, solution
    status TEXT NOT NULL,       -- of an attempt the verdict's; of a solution earned or gave_up
    findings TEXT NOT NULL,     -- JSON: a list of [code, found, rule, look]
    seconds REAL NOT NULL,      -- what the check took
    text TEXT NOT NULL          -- what had been typed
);
CREATE INDEX IF NOT EXISTS entries_by_drill ON entries (drill, id);
"""
# These say that the file itself is no good; anything else (locked, full) may pass.
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}

Kind = Literal["start", "attempt", "hint", "solution"]


class Entry(NamedTuple):
    """One line of the history."""

    at: float
    drill: str
    kind: Kind
    status: str = ""
    findings: Sequence[Sequence[str]] = ()
    seconds: float = 0.0
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One sitting with one drill."""

    entries: Sequence[Entry]

    @property
    def drill(self) -> str:
        """The drill's id."""
        return self.entries[0].drill

    @property
    def began(self) -> float:
        """Unix seconds."""
        return self.entries[0].at

    @property
    def is_timed(self) -> bool:
        """Whether it began with a start, so that its pace means something."""
        return self.entries[0].kind == "start"

    def of(self, kind: Kind) -> list[Entry]:
        """Its entries of one kind."""
        return [entry for entry in self.entries if entry.kind == kind]

    @property
    def passed(self) -> Entry | None:
        """The first attempt that passed."""
        return next((entry for entry in self.of("attempt") if entry.status == "passed"), None)

    @property
    def gave_up(self) -> bool:
        """Whether the solution was opened before a pass."""
        return any(entry.status == "gave_up" for entry in self.of("solution"))

    @property
    def until(self) -> float:
        """When it ended: at the pass, or else at its last entry."""
        return (self.passed or self.entries[-1]).at


def rounds_of(entries: Iterable[Entry]) -> list[Round]:
    """Cut a history into rounds, in the order in which they began."""
    rounds: list[list[Entry]] = []
    open_round: dict[str, list[Entry]] = {}
    for entry in entries:
        current = open_round.get(entry.drill)
        if current is None or entry.kind == "start" or entry.at > current[-1].at + PAUSE_S:
            current = open_round[entry.drill] = []
            rounds.append(current)
        current.append(entry)
    return [Round(entries=entries) for entries in rounds]


class Progress:
    """The history in one folder.

    Each call opens the file anew: two kernels may share it, and either may forget it.

    Args:
        folder: holds the file; made if it is missing.
        say: told in one line what was done about a file that cannot be used.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print) -> None:
        self.path, self.say = folder / FILE, say
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def add(self, drill: str, kind: Kind, status: str = "") -> None:
        """Note a start, a hint or a solution."""
        self._insert(Entry(time.time(), drill, kind, status))

    def add_attempt(self, verdict: Verdict, text: str) -> None:
        """Note what a check came to, and the text that it was about."""
        self._insert(
            Entry(
                time.time(),
                verdict.drill,
                "attempt",
                verdict.status,
                list(verdict.findings),
                verdict.seconds,
                text,
            )
        )

    def entries(self, drill: str | None = None) -> list[Entry]:
        """The history, or one drill's, oldest first, under today's ids and codes."""
        columns = ", ".join(Entry._fields)
        found = []
        for row in self._run(f"SELECT {columns} FROM entries ORDER BY id", []):
            findings = [[current_code(code), *rest] for code, *rest in json.loads(row[4])]
            entry = Entry._make([*row[:4], findings, *row[5:]])
            found.append(entry._replace(drill=current_id(entry.drill)))
        return [e for e in found if drill is None or e.drill == current_id(drill)]

    def rounds(self, drill: str | None = None) -> list[Round]:
        """The history's rounds, or one drill's, in the order in which they began."""
        return rounds_of(self.entries(drill))

    def forget(self) -> None:
        """Delete the file and what is kept in memory."""
        with self._lock:
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _insert(self, entry: Entry) -> None:
        marks = ", ".join("?" * len(entry))
        values = [*entry[:4], json.dumps(entry.findings), *entry[5:]]
        self._run(f"INSERT INTO entries ({', '.join(Entry._fields)}) VALUES ({marks})", values)

    def _run(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement on the file; a rehearsal goes on also where that cannot be done."""
        with self._lock:
            for is_second_try in (False, True):
                if self._memory is not None:
                    break
                try:
                    return self._run_on_file(statement, values)
                except (sqlite3.Error, OSError) as error:
                    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                    unusable = code in BROKEN | READ_ONLY and not is_second_try
                    if not (unusable and self._set_aside(error)):
                        self._go_on_in_memory(error)
            assert self._memory is not None
            with self._memory:
                return self._memory.execute(statement, values).fetchall()

    def _run_on_file(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _connected(self.path) as connection, connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                _make_tables(connection)
            elif version != VERSION:
                error = sqlite3.DatabaseError(f"its format is {version}, not {VERSION}")
                error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                raise error
            return connection.execute(statement, values).fetchall()

    def _set_aside(self, error: Exception) -> bool:
        """Rename a file that cannot be used; False where that cannot be done either."""
        name = time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}-{FILE}")
        try:
            self.path.rename(self.path.with_name(name))
            for suffix in ("-wal", "-shm"):  # they belong to it, and would spoil a fresh one
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        except OSError:
            return False
        self.say(f"{self.path} cannot be used ({error}). It is now {name}; a fresh one begins.")
        return True

    def _go_on_in_memory(self, error: Exception) -> None:
        self.say(
            f"{self.path} cannot be written ({error}). This sitting is kept in memory only; "
            "set REHEARSAL_HOME to a folder that can be written to keep the next."
        )
        self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        # What can still be read of it is shown at least.
        readable = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(readable, uri=True)) as old,
        ):
            old.execute("SELECT count(*) FROM entries")
            old.backup(self._memory)
        self._memory.executescript(SCHEMA)


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    # The timeout is what another kernel may hold the file; its writes take milliseconds.
    connection = sqlite3.connect(path, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        yield connection
    finally:
        connection.close()


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file; harmless where another kernel was faster."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT"
    )
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    os.chmod(path, 0o600)  # what somebody typed is theirs


def home() -> Path:
    """The folder of the file: REHEARSAL_HOME, or where this system keeps a user's data."""
    if named := os.environ.get("REHEARSAL_HOME"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_data_path("distributed-trainer-rehearsal")


@cache
def _progress_in(folder: Path) -> Progress:
    return Progress(folder)


def progress() -> Progress:
    """This user's history; the same object as long as the folder is the same."""
    return _progress_in(home())


def forget() -> None:
    """Delete everything that is kept about this user's rehearsals."""
    mine = progress()
    mine.forget()
    print(f"{mine.path} is deleted; nothing else was kept.")

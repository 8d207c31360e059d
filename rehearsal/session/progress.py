"""What a person has tried, kept from one session to the next in a local SQLite file.

Nothing leaves the machine: the file is the only copy, and ``forget()`` deletes it, with the
incidents and interviews beside it. It stores entries, answers and notes; everything else
(rounds, pace, what is due) is derived from them when asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rehearsal.grading.drill import current_id
from rehearsal.grading.verdict import Verdict, current_code
from rehearsal.session.history import Answer, Entry, Kind, Note, Round, rounds_of

FILE = "progress.sqlite3"
BESIDE = ("incidents", "interviews", "interview_forms")  # folders of the same person
VERSION = 3  # 1 had no answers, 2 no notes
SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,           -- unix seconds
    drill TEXT NOT NULL,
    kind TEXT NOT NULL,         -- start, attempt, hint, solution
    status TEXT NOT NULL,       -- an attempt: the verdict's; a solution: earned or gave_up
    findings TEXT NOT NULL,     -- JSON: a list of [code, found, rule, look]
    seconds REAL NOT NULL,      -- how long the check took
    text TEXT NOT NULL          -- what was typed
);
CREATE INDEX IF NOT EXISTS entries_by_drill ON entries (drill, id);
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,           -- unix seconds
    card TEXT NOT NULL,
    grade TEXT NOT NULL,        -- again, hard, good, easy
    points TEXT NOT NULL,       -- JSON: point id to covered, missed or contradicted
    text TEXT NOT NULL,         -- what was typed; empty if it was only spoken
    seconds REAL NOT NULL       -- from the question to the end of the answer
);
CREATE TABLE IF NOT EXISTS notes (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,           -- unix seconds
    what TEXT NOT NULL,         -- interview, minutes, read, unread; an unknown one is skipped
    value TEXT NOT NULL         -- a date, the minutes of a day, a page
);
"""
# The file itself is damaged. Anything else (locked, disk full) may be temporary.
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}


class Progress:
    """The history in one folder.

    Each call opens the file anew: two notebooks may share it, and either may delete it.

    Args:
        folder: where the file is; created if it is missing.
        say: called with one line that says what was done about a file that cannot be used.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print) -> None:
        self.path, self.say = folder / FILE, say
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def add(self, drill: str, kind: Kind, status: str = "") -> None:
        """Add a start, a hint or a solution."""
        self._insert(Entry(time.time(), drill, kind, status))

    def add_attempt(self, verdict: Verdict, text: str) -> None:
        """Add an attempt: the verdict, and the text that was judged."""
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

    def add_answer(self, answer: Answer) -> None:
        """Add an answer to a card."""
        values = [*answer[:3], json.dumps(dict(answer.points)), *answer[4:]]
        self._insert_into("answers", Answer._fields, values)

    def answers(self, card: str | None = None) -> list[Answer]:
        """All answers, or those to one card, oldest first."""
        columns = ", ".join(Answer._fields)
        rows = self._run(f"SELECT {columns} FROM answers ORDER BY id", [])
        found = [Answer._make([*row[:3], json.loads(row[3]), *row[4:]]) for row in rows]
        return [answer for answer in found if card is None or answer.card == card]

    def add_note(self, what: str, value: str) -> None:
        """Add what a person has said about their plan; the newest note of a kind counts."""
        self._insert_into("notes", Note._fields, [time.time(), what, value])

    def notes(self) -> list[Note]:
        """All notes, oldest first."""
        columns = ", ".join(Note._fields)
        rows = self._run(f"SELECT {columns} FROM notes ORDER BY id", [])
        return [Note._make(row) for row in rows]

    def rounds(self, drill: str | None = None) -> list[Round]:
        """All rounds, or one drill's, in the order in which they began."""
        return rounds_of(self.entries(drill))

    def forget(self) -> None:
        """Delete the file, and whatever is kept in memory."""
        with self._lock:
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _insert(self, entry: Entry) -> None:
        values = [*entry[:4], json.dumps(entry.findings), *entry[5:]]
        self._insert_into("entries", Entry._fields, values)

    def _insert_into(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        marks = ", ".join("?" * len(columns))
        self._run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)

    def _run(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement on the file. If that fails, the rehearsal continues in memory."""
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
                        self._continue_in_memory(error)
            assert self._memory is not None
            with self._memory:
                return self._memory.execute(statement, values).fetchall()

    def _run_on_file(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _connected(self.path) as connection, connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < VERSION:
                _make_tables(connection)
            elif version > VERSION:
                error = sqlite3.DatabaseError(f"its format is {version}, not {VERSION}")
                error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                raise error
            return connection.execute(statement, values).fetchall()

    def _set_aside(self, error: Exception) -> bool:
        """Rename a file that cannot be used; False if that fails too."""
        name = time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}-{FILE}")
        try:
            self.path.rename(self.path.with_name(name))
            for suffix in ("-wal", "-shm"):  # they belong to it, and would corrupt a new one
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        except OSError:
            return False
        self.say(
            f"Your history in {self.path} cannot be used ({error}). It was renamed to {name}, "
            "and a new one was started."
        )
        return True

    def _continue_in_memory(self, error: Exception) -> None:
        self.say(
            f"Your history in {self.path} cannot be written ({error}), so what you do now is "
            "kept in memory only, and lost at the end of this session. To keep your history "
            "next time, set REHEARSAL_HOME to a folder you can write to."
        )
        self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        # At least show whatever can still be read.
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
    # Another notebook may hold the file this long; its writes take milliseconds.
    connection = sqlite3.connect(path, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        yield connection
    finally:
        connection.close()


def _make_tables(connection: sqlite3.Connection) -> None:
    """Create what a new or older file lacks; harmless if another notebook was faster."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT"
    )
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    os.chmod(path, 0o600)  # what you typed is private


def home() -> Path:
    """The file's folder: REHEARSAL_HOME, or where this system keeps user data."""
    if named := os.environ.get("REHEARSAL_HOME"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_data_path("distributed-trainer-rehearsal")


@cache
def _progress_in(folder: Path) -> Progress:
    return Progress(folder)


def progress() -> Progress:
    """This user's history: the same object as long as the folder is the same."""
    return _progress_in(home())


def forget() -> None:
    """Delete your history: whatever was kept of what you did. Your own cards stay."""
    mine = progress()
    mine.forget()
    beside = [name for name in BESIDE if (home() / name).exists()]
    for name in beside:
        shutil.rmtree(home() / name)
    deleted = ", ".join([str(mine.path), *(f"{name}/" for name in beside)])
    print(f"Deleted {deleted}, the only copy of your history.")

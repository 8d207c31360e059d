"""The history outlives kernels, damage and each other; what is due follows from it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rehearsal.engine.programs import Program
from rehearsal import forget
from rehearsal.grading.drill import Drill, drill_ids, former_ids, load
from rehearsal.session.history import PAUSE_S, Answer, Entry, Kind, Round, rounds_of
from rehearsal.session.progress import FILE, Progress, home, progress
from rehearsal.session.schedule import MAX_INTERVAL_DAYS, due_at, grade_of, next_of, standings
from rehearsal.grading.verdict import ENGINE_FINDINGS, FORMER_CODES, Finding, Verdict

ROOT = Path(__file__).resolve().parents[1]
DAY = 86400.0
NOBODY = 65534
WRONG = Verdict(
    drill="d", status="wrong", seconds=0.3, findings=[Finding("code", "found", "rule", "look")]
)


class Book:
    """A history in a folder, and what it said about its file."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.progress = Progress(folder, self.said.append)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "history")


Connect = Callable[..., sqlite3.Connection]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """sqlite3's own ``connect``, while the history's gives up on a lock after 50 ms."""
    own = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: own(*a, **{**k, "timeout": 0.05}))
    return own


@contextmanager
def as_nobody() -> Iterator[None]:
    """Become another user: root may write to read-only files."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are their owner's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777)
    shutil.rmtree(folder)


class TestHistory:
    def test_an_entry_is_there_in_the_next_session(self, tmp_path: Path) -> None:
        """A diff needs the text of yesterday's attempt, and status its verdict."""
        first = Progress(tmp_path)
        first.add("d", "start")
        first.add_attempt(WRONG, "x = 1\n")
        first.add("d", "hint", "1")
        first.add("other", "solution", "gave_up")
        start, attempt, hint, solution = Progress(tmp_path).entries()
        assert (start.drill, start.kind, hint.status) == ("d", "start", "1")
        assert attempt.text == "x = 1\n"
        assert (attempt.status, attempt.seconds) == ("wrong", 0.3)
        assert attempt.findings == [["code", "found", "rule", "look"]]
        assert abs(attempt.at - time.time()) < 60
        assert solution.status == "gave_up"
        assert len(Progress(tmp_path).entries("d")) == 3

    def test_a_history_from_before_the_deck_keeps_its_entries(self, book: Book) -> None:
        """Set aside as unusable, it would take months of rehearsals with it."""
        book.progress.add("d", "start")
        connection = sqlite3.connect(book.progress.path)
        connection.execute("DROP TABLE answers")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
        connection.close()
        book.progress.add_answer(Answer(1.0, "a_card", "good", {"a_point": "covered"}))
        assert [entry.drill for entry in book.progress.entries()] == ["d"]
        assert [answer.card for answer in book.progress.answers()] == ["a_card"]
        assert book.said == []

    def test_only_its_owner_may_read_it(self, book: Book) -> None:
        """What you typed, and how often it failed, is private."""
        book.progress.add("d", "start")
        assert book.progress.path.stat().st_mode & 0o077 == 0
        assert book.progress.path.parent.stat().st_mode & 0o077 == 0

    def test_forget_deletes_everything(self, tmp_path: Path) -> None:
        """A person who asks for it must not find a copy left."""
        mine = Progress(tmp_path / "history")
        mine.add("d", "start")
        mine.forget()
        assert list((tmp_path / "history").iterdir()) == []
        assert mine.entries() == []

    def test_forget_deletes_incidents_and_interviews_but_no_card(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """They have what was typed and said, and the next plan would be made from them."""
        kept = [home() / "cards" / "mine.toml"]
        gone = [
            home() / "incidents" / "7" / "events.jsonl",
            home() / "interviews" / "2026-11-24-seed3-1" / "events.jsonl",
            home() / "interview_forms" / "weak.json",
        ]
        for path in [*kept, *gone]:
            path.parent.mkdir(parents=True)
            path.write_text("mine")
        forget()
        assert [path for path in home().rglob("*") if path.is_file()] == kept
        assert "incidents/, interviews/, interview_forms/, the only copy" in (
            capsys.readouterr().out
        )

    def test_forget_works_across_notebooks(self, tmp_path: Path) -> None:
        """A notebook that kept the file open would write to what was deleted."""
        ours, theirs = Progress(tmp_path), Progress(tmp_path)
        ours.add("old", "start")
        theirs.forget()
        ours.add("new", "start")
        assert [entry.drill for entry in theirs.entries()] == ["new"]

    def test_the_folder_is_the_users_own_unless_named(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A file in the working folder would be committed by accident."""
        assert progress().path.parent == home() == Path(os.environ["REHEARSAL_HOME"])
        progress().add("d", "start")
        forget()
        assert not progress().path.exists()
        assert str(progress().path) in capsys.readouterr().out
        monkeypatch.delenv("REHEARSAL_HOME")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert home().is_relative_to(tmp_path)
        assert home().name == "distributed-trainer-rehearsal"

    @pytest.mark.ranks
    def test_two_notebooks_at_once_lose_nothing(self, tmp_path: Path) -> None:
        """Two notebooks side by side are the ordinary case."""
        code = (
            "import sys\nfrom pathlib import Path\n"
            "from rehearsal.session.progress import Progress\n"
            "mine = Progress(Path(sys.argv[1]))\n"
            "for _ in range(40): mine.add(sys.argv[2], 'start')\n"
            "print('memory' if mine._memory else 'file')"
        )
        with (
            Program("-c", code, str(tmp_path), "a") as first,
            Program("-c", code, str(tmp_path), "b") as second,
        ):
            assert [kernel.wait(60) for kernel in (first, second)] == [0, 0]
            assert [kernel.stdout for kernel in (first, second)] == ["file\n", "file\n"]
        drills = [entry.drill for entry in Progress(tmp_path).entries()]
        assert (drills.count("a"), drills.count("b")) == (40, 40)

    def test_a_reader_does_not_block_a_writer(self, book: Book, connect: Connect) -> None:
        """An attempt must not be lost because another notebook shows its status."""
        book.progress.add("d", "start")
        reader = connect(book.progress.path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM entries").fetchall()
        book.progress.add("d", "hint", "1")
        reader.close()
        assert book.said == []
        assert len(book.progress.entries()) == 2


class TestDamage:
    @pytest.mark.parametrize("damage", ["noise", "torn", "other tables", "newer", "a folder"])
    def test_a_file_that_cannot_be_used_is_set_aside(self, book: Book, damage: str) -> None:
        """It is renamed, not deleted: somebody may still want what is in it."""
        book.progress.add("d", "start")
        path = book.progress.path
        if damage == "noise":
            path.write_bytes(b"not a database, but long enough to look like one" * 100)
        elif damage == "torn":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        elif damage == "a folder":
            path.unlink()
            path.mkdir()
        else:
            connection = sqlite3.connect(path)
            connection.execute(
                "PRAGMA user_version = 99" if damage == "newer" else "DROP TABLE entries"
            )
            connection.commit()
            connection.close()
        book.progress.add("e", "start")
        assert [entry.drill for entry in book.progress.entries()] == ["e"]
        (line,) = book.said
        assert f"{path} cannot be used" in line
        (aside,) = [p for p in path.parent.iterdir() if not p.name.startswith(FILE)]
        assert aside.name in line
        assert "\n" not in line

    def test_a_read_only_file_is_set_aside_too(self, foreign: Path) -> None:
        """It came from a backup, say; the rehearsal continues in a new one."""
        with as_nobody():
            book = Book(foreign)
            book.progress.add("d", "start")
            book.progress.path.chmod(0o444)
            book.progress.add("e", "start")
            assert [entry.drill for entry in book.progress.entries()] == ["e"]
        assert len(book.said) == 1
        assert "readonly" in book.said[0]

    def test_a_read_only_folder_is_reported_once_and_the_session_continues(
        self, foreign: Path
    ) -> None:
        """An attempt must not fail because it cannot be stored."""
        with as_nobody():
            Progress(foreign).add("before", "start")
            (foreign / FILE).chmod(0o444)
        foreign.chmod(0o555)
        with as_nobody():
            book = Book(foreign)
            book.progress.add("d", "start")
            book.progress.add("d", "hint", "1")
            kinds = [(entry.drill, entry.kind) for entry in book.progress.entries()]
        assert kinds == [("before", "start"), ("d", "start"), ("d", "hint")]
        (line,) = book.said
        assert "kept in memory only" in line
        assert "REHEARSAL_HOME" in line

    def test_a_folder_that_cannot_be_created_is_reported(self, tmp_path: Path) -> None:
        """REHEARSAL_HOME may name anything."""
        (tmp_path / "file").write_text("")
        book = Book(tmp_path / "file" / "below")
        book.progress.add("d", "start")
        assert len(book.progress.entries()) == 1
        assert "kept in memory only" in book.said[0]

    def test_a_locked_file_is_not_set_aside(self, book: Book, connect: Connect) -> None:
        """Locked is not broken: renaming it would hide the history from both notebooks."""
        book.progress.add("d", "start")
        holder = connect(book.progress.path)
        holder.execute("BEGIN EXCLUSIVE")
        book.progress.add("d", "hint", "1")
        holder.rollback()
        holder.close()
        assert book.progress.path.exists()
        assert "locked" in book.said[0]
        assert "kept in memory only" in book.said[0]


def entry(at: float, kind: Kind, status: str = "", drill: str = "d") -> Entry:
    return Entry(at, drill, kind, status)


def a_round(*entries: Entry) -> Round:
    (one,) = rounds_of(entries)
    return one


class TestRounds:
    def test_a_start_begins_a_round_for_its_drill_only(self) -> None:
        """Hints of the last round must not count against this one."""
        history = [
            entry(0, "start"),
            entry(1, "start", drill="e"),
            entry(2, "hint", "1"),
            entry(3, "attempt", "wrong", "e"),
            entry(4, "start"),
            entry(5, "attempt", "passed"),
        ]
        rounds = rounds_of(history)
        assert [(one.drill, len(one.entries)) for one in rounds] == [
            ("d", 2),
            ("e", 2),
            ("d", 2),
        ]
        assert [one.passed is not None for one in rounds] == [False, False, True]

    def test_a_check_without_a_start_on_another_day_is_another_round(self) -> None:
        """A pass a week later is a review; on the same day it is the same pass."""
        passes = [entry(at, "attempt", "passed") for at in (0, 60, PAUSE_S + 61)]
        rounds = rounds_of(passes)
        assert [len(one.entries) for one in rounds] == [2, 1]
        assert not rounds[0].is_timed

    def test_a_round_ends_at_its_first_pass(self) -> None:
        """Trying another design afterward must not count as slowness."""
        one = a_round(entry(0, "start"), entry(60, "attempt", "passed"), entry(900, "solution"))
        assert one.until == 60


PASS = entry(60, "attempt", "passed")
START = entry(0, "start")
WRONG_TRY = entry(30, "attempt", "wrong")
HINTS = [entry(at, "hint", "1") for at in (10, 20, 30)]


class TestSchedule:
    @pytest.mark.parametrize(
        ("entries", "grade"),
        [
            ([START, PASS], "easy"),
            ([PASS], "good"),
            ([START, WRONG_TRY, PASS], "good"),
            ([START, HINTS[0], PASS], "good"),
            ([START, *HINTS, PASS], "hard"),
            ([START, entry(601, "attempt", "passed")], "hard"),
            ([START, entry(5, "solution", "gave_up"), PASS], "again"),
            ([START, PASS, entry(70, "solution", "earned")], "easy"),
            ([START, WRONG_TRY], None),
        ],
    )
    def test_help_and_time_decide_the_grade(
        self, entries: list[Entry], grade: str | None
    ) -> None:
        """A pass with the solution open must not count for a month."""
        assert grade_of(a_round(*entries), minutes=10) == grade

    def test_intervals_grow_and_stay_within_a_month(self) -> None:
        """An interview is weeks away, not years."""
        rounds: list[Round] = []
        at, days = 0.0, []
        for _ in range(6):
            rounds.append(
                a_round(entry(at, "attempt", "wrong"), entry(at, "attempt", "passed"))
            )
            due = due_at(rounds, 10)
            assert due is not None
            days.append((due - at) / DAY)
            at = due
        assert days == sorted(days)
        assert 1 <= days[0] <= 3
        assert days[-1] == MAX_INTERVAL_DAYS

    def test_giving_up_brings_it_back_tomorrow(self) -> None:
        """Reading a solution is not the same as writing one."""
        gave_up = [a_round(entry(0, "start"), entry(9, "solution", "gave_up"))]
        assert due_at(gave_up, 10) == pytest.approx(DAY, abs=10)

    def test_without_an_end_nothing_is_due(self) -> None:
        """A drill that was never passed is started, not due."""
        assert due_at([a_round(START, WRONG_TRY)], 10) is None


class TestNext:
    @pytest.fixture
    def drills(self) -> list[Drill]:
        drill = load("lift_to_distributed")
        names = ("a", "b", "c")
        fields = {name: getattr(drill, name) for name in Drill.__dataclass_fields__}
        return [Drill(**{**fields, "id": name}) for name in names]

    @pytest.mark.parametrize(
        ("history", "days", "expected", "words"),
        [
            ([], 0, "a", ["new", "new", "new"]),
            ([("a", "passed")], 0, "b", ["due in 2 days", "new", "new"]),
            ([("a", "passed"), ("c", "wrong")], 0, "c", ["due in 2 days", "new", "started"]),
            ([("c", "wrong"), ("b", "passed")], 40, "b", ["new", "due now", "started"]),
            ([("c", "passed"), ("a", "passed")], 40, "c", ["due now", "new", "due now"]),
            ([(n, "passed") for n in "abc"], 1, None, ["due in 1 day"] * 3),
        ],
    )
    def test_due_comes_before_started_before_new(
        self,
        drills: list[Drill],
        history: list[tuple[str, str]],
        days: float,
        expected: str | None,
        words: list[str],
    ) -> None:
        """A drill that is never repeated is forgotten by the day of the interview."""
        entries = [entry(place, "attempt", s, d) for place, (d, s) in enumerate(history)]
        found = standings(drills, rounds_of(entries))
        now = days * DAY + 10
        after = next_of(found, now)
        assert (after.drill.id if after else None) == expected
        assert [standing.words(now) for standing in found] == words


class TestRenamedDrills:
    def test_a_history_under_the_old_id_counts_for_the_new_one(self, tmp_path: Path) -> None:
        """Months of practice would vanish from status() with a rename."""
        mine = Progress(tmp_path)
        mine.add("mend_the_crash_loop", "start")
        mine.add("every_restart_crashes", "hint", "1")
        for name in ("mend_the_crash_loop", "every_restart_crashes"):
            assert [entry.kind for entry in mine.entries(name)] == ["start", "hint"]
        assert {entry.drill for entry in mine.entries()} == {"every_restart_crashes"}

    def test_a_finding_under_its_old_code_counts_for_the_new_one(self, tmp_path: Path) -> None:
        """Otherwise the debrief counts one mistake as two."""
        mine = Progress(tmp_path)
        for code in ("walkthroughs-own", "imported-not-typed"):
            finding = Finding(code, "found", "rule", "look")
            verdict = Verdict(drill="cell_train", status="wrong", findings=[finding])
            mine.add_attempt(verdict, "")
        codes = [entry.findings[0][0] for entry in mine.entries()]
        assert codes == ["imported-not-typed"] * 2

    def test_no_former_code_is_a_code_of_today(self) -> None:
        """An alias that hides a code would turn it into a different mistake."""
        today = {code for drill in map(load, drill_ids()) for code in drill.codes}
        today |= set(ENGINE_FINDINGS.codes)
        assert FORMER_CODES
        assert not set(FORMER_CODES) & today
        assert set(FORMER_CODES.values()) <= today

    def test_no_former_id_is_a_drill_of_today(self) -> None:
        """An alias that hides a drill makes it unreachable."""
        assert former_ids()
        assert not set(former_ids()) & set(drill_ids())
        for former, today in former_ids().items():
            assert load(former).id == today

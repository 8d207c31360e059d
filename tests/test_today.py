"""today(): what it reads, what it keeps, what it says, and what it draws."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fresh_interpreter import modules_loaded_by

import rehearsal
from rehearsal.__main__ import main, parser
from rehearsal.deck import ask as deck
from rehearsal.grading.drill import load
from rehearsal.incidents.draw import draw
from rehearsal.incidents.score import score_of
from rehearsal.incidents.store import Store
from rehearsal.incidents.tracks import TRACKS, TrackName
from rehearsal.interviews.rubric import RUBRIC
from rehearsal.interviews.store import Store as InterviewStore
from rehearsal.plan import today as calling
from rehearsal.plan.by_day import by_day
from rehearsal.plan.cases import read_cases
from rehearsal.plan.picture import picture
from rehearsal.plan.record import Record, card_minutes, minutes_by_day, work_of
from rehearsal.plan.scorecards import read_begun, read_scorecards
from rehearsal.plan.strengths import INCIDENT_ROWS, Strength, weak_rows
from rehearsal.session.history import Answer, Entry, Grade
from rehearsal.session.progress import FILE, VERSION, progress
from rehearsal.session.schedule import end_of_day
from rehearsal.session.terminal import program

Capture = pytest.CaptureFixture[str]
TODAY = date.today()
CARDS = list(rehearsal.cards())
DRILLS = rehearsal.drills()
V2 = """
CREATE TABLE entries (id INTEGER PRIMARY KEY, at REAL NOT NULL, drill TEXT NOT NULL,
    kind TEXT NOT NULL, status TEXT NOT NULL, findings TEXT NOT NULL, seconds REAL NOT NULL,
    text TEXT NOT NULL);
"""
ANSWERS = """
CREATE TABLE answers (id INTEGER PRIMARY KEY, at REAL NOT NULL, card TEXT NOT NULL,
    grade TEXT NOT NULL, points TEXT NOT NULL, text TEXT NOT NULL, seconds REAL NOT NULL);
"""


@pytest.fixture(autouse=True)
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays the day on which the tests began, even around midnight."""
    monkeypatch.setattr(calling, "_today", lambda: TODAY)


def noon(days_ago: float = 0) -> float:
    """Noon of a day, in unix seconds."""
    return (
        datetime.combine(TODAY - timedelta(days=days_ago), datetime.min.time()).timestamp()
        + 43200
    )


def iso(days: int) -> str:
    """A date so many days from today, as it is typed."""
    return (TODAY + timedelta(days=days)).isoformat()


def answered(card: str, days_ago: float, grade: Grade = "good", seconds: float = 60.0) -> None:
    """Record an answer."""
    progress().add_answer(Answer(noon(days_ago), card, grade, {}, "x", seconds))


def tried(drill: str, days_ago: float, status: str = "passed", minutes: float = 10.0) -> None:
    """Record a round with one attempt."""
    progress()._insert(Entry(noon(days_ago) - 60 * minutes, drill, "start"))
    progress()._insert(Entry(noon(days_ago), drill, "attempt", status))


def interviewed(name: str, days_ago: float, marks: dict[str, float]) -> Path:
    """Write a scorecard of an interview of half an hour; returns its file."""
    folder = progress().path.parent / "interviews" / name
    folder.mkdir(parents=True)
    ended = noon(days_ago)
    rows = [{"row": row, "mark": mark, "evidence": []} for row, mark in marks.items()]
    card = {"format": 1, "name": name, "ended": ended, "minutes": 45, "seed": 3, "rows": rows}
    card["spent_minutes"] = 30
    (folder / "scorecard.json").write_text(json.dumps(card))
    return folder / "scorecard.json"


def begun(name: str, days_ago: float, *, minutes: float = 45, at: float = 0.0) -> Path:
    """Write an interview that hasn't ended; returns its folder."""
    store = InterviewStore(progress().path.parent / "interviews" / name)
    seed = int(name.split("seed")[1].split("-")[0])
    store.create(minutes=minutes, seed=seed, mode="real", began=noon(days_ago))
    store.add("say", 60.0, text="hi")
    store.keep_clock(60 * at)
    header = store.folder / "interview.json"
    os.utime(header, (noon(days_ago), noon(days_ago)))
    return store.folder


def on_call(
    seed: int,
    days_ago: float,
    *,
    is_right: bool = True,
    ends: bool = True,
    track: TrackName = "general",
) -> Store:
    """Write a case in which a cause was named after a look, and nothing changed."""
    store = Store(seed, track=track)
    kind = draw(seed, deck=TRACKS[track].deck).causes[0]
    store.create(kind, "realistic")
    at = noon(days_ago)
    wrong = next(name for name in rehearsal.incident_kinds(track=track) if name != kind)
    cause = kind if is_right else wrong
    events: list[dict[str, Any]] = [
        {"did": "look", "at": at - 1200, "source": "loss", "scope": {}, "run": 0, "minutes": 1},
        {"did": "diagnose", "at": at - 600, "cause": cause, "because": [], "first_move": ""},
    ]
    events += [{"did": "debrief", "at": at}] if ends else []
    text = "".join(json.dumps(event) + "\n" for event in events)
    (store.folder / "events.jsonl").write_text(text)
    return store


def said(capsys: Capture, *arguments: str) -> str:
    """What the command prints."""
    capsys.readouterr()
    assert main(["today", *arguments]) == 0
    return capsys.readouterr().out


def record() -> Record:
    """What there is to plan from."""
    return calling._read()


class TestWithoutAHistory:
    def test_a_first_day_has_a_plan_and_no_empty_table(self, capsys: Capture) -> None:
        """Nine rows of "no evidence yet" would be the first thing that a beginner sees."""
        out = said(capsys)
        assert "Nothing is due for review today." in out
        assert "The interview map (chapter 10)" in out
        assert f"then: {program()} today --read 10" in out
        assert f"{program()} today --date {iso(14)} sets it" in out
        assert "rubric row" not in out
        assert re.search(r"In total \d\d minutes\.", out)

    def test_every_line_can_be_begun(self, capsys: Capture) -> None:
        """A notebook that isn't there, or a command that doesn't exist, ends the evening."""
        answered(CARDS[0].id, 9)
        tried("happy_path", 9)
        lines = [line.strip() for line in said(capsys, "--minutes", "300").splitlines()]
        begins = [line.partition("   then: ") for line in lines]
        begins = [each for each in begins if each[0].startswith(("open ", program()))]
        assert len(begins) > 6
        for begin, _, after in begins:
            if begin.startswith("open "):
                assert Path(begin.removeprefix("open ")).is_file(), begin
            for command in (begin, after):
                words = command.removeprefix(program()).split()
                if command.startswith(program()):
                    parser().parse_args(words)

    @pytest.mark.ranks
    def test_importing_it_loads_neither_torch_nor_pictures(self) -> None:
        """A plan at a terminal that takes seconds to appear isn't looked at every day."""
        loaded = modules_loaded_by("import rehearsal.plan.today")
        assert "rehearsal.plan.agenda" in loaded
        assert not loaded & {"torch", "matplotlib", "numpy", "fsrs"}

    @pytest.mark.ranks
    def test_the_function_survives_an_import_of_its_module(self) -> None:
        """A package of that name would replace it by a module that can't be called."""
        code = "import rehearsal.plan.today, rehearsal; assert callable(rehearsal.today)"
        assert "rehearsal.plan.today" in modules_loaded_by(code)


class TestWhatItKeeps:
    def test_a_date_is_kept_and_a_change_is_said(self, capsys: Capture) -> None:
        """A typo that replaces the date in silence plans for the wrong week."""
        assert f"Interview date: {iso(9)}.\n" in said(capsys, "--date", iso(9))
        assert "9 days until your interview" in said(capsys)
        assert f"Interview date: {iso(12)}; it was {iso(9)}." in said(capsys, "--date", iso(12))
        assert "Interview date" not in said(capsys, "--date", iso(12))
        assert f"No interview date anymore; it was {iso(12)}." in said(capsys, "--date", "none")
        assert "No interview date yet" in said(capsys)

    def test_a_days_minutes_are_kept_and_a_change_is_said(self, capsys: Capture) -> None:
        """Somebody with an hour a day would have to say so every day."""
        assert "Minutes a day: 60; it was 90." in said(capsys, "--minutes", "60")
        assert "60 minutes a day" in said(capsys)
        assert "it was" not in said(capsys, "--minutes", "60")

    def test_a_chapter_that_was_read_leaves_the_plan_until_it_is_unread(
        self, capsys: Capture
    ) -> None:
        """There is no other record of having read one."""
        out = said(capsys, "--read", "10")
        assert f"To undo it: {program()} today --unread 10." in out
        assert "open notebooks/handbook/10_interview_map.ipynb" not in out
        assert "25 of them done" in out
        assert "rubric row" not in out  # nothing is known about any
        assert "Marked as unread" in said(capsys, "--unread", "10")
        assert "open notebooks/handbook/10_interview_map.ipynb" in said(capsys)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--date", iso(-1)], f"{iso(-1)} is in the past: today is {TODAY.isoformat()}."),
            (["--date", "4 December"], "'4 December' is not a date. Write year, month and day"),
            (["--date", "2026-02-30"], "'2026-02-30' is not a date"),
            (["--date", iso(900)], f"{iso(900)} is 900 days away"),
            (["--minutes", "5"], "5 minutes a day: a plan needs 10 to 600"),
            (["--minutes", "601"], "601 minutes a day"),
            (["--read", "99"], "'99': no such page"),
            (["--unread", "01"], "2 pages begin with '01'"),
            (["--minutes", "60", "--date", "soon", "--read", "10"], "'soon' is not a date"),
        ],
    )
    def test_a_mistake_is_one_line_and_changes_nothing(
        self, capsys: Capture, arguments: list[str], message: str
    ) -> None:
        """Half a command that took effect is found out days later."""
        assert main(["today", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("rehearsal: ")
        assert message in line
        assert progress().notes() == []

    def test_a_call_takes_a_date_too(self) -> None:
        """In a notebook, a date is often a variable."""
        rehearsal.today(date=TODAY + timedelta(days=3))
        assert record().interview == TODAY + timedelta(days=3)
        for wrong in (True, 45.5, "60"):
            with pytest.raises(rehearsal.BadPlan, match="must be a whole number"):
                rehearsal.today(minutes=wrong)  # type: ignore[arg-type]

    def test_after_the_interview_it_asks_for_the_next_date(self, capsys: Capture) -> None:
        """ "-3 days until your interview" helps nobody."""
        progress().add_note("interview", iso(-3))
        out = said(capsys)
        assert f"Your interview was on {iso(-3)}. For the next one:" in out
        assert "Not everything fits" not in out

    @pytest.mark.parametrize(
        ("what", "value"),
        [("interview", "soon"), ("minutes", "many"), ("read", "99"), ("x", "")],
    )
    def test_a_note_that_nobody_knows_is_skipped(
        self, capsys: Capture, what: str, value: str
    ) -> None:
        """A newer version's notes must not take the plan away."""
        progress().add_note(what, value)
        assert "90 minutes a day" in said(capsys)

    def test_forget_forgets_the_plan_too(self, capsys: Capture) -> None:
        """A date that survives "delete my history" was not deleted."""
        said(capsys, "--date", iso(9), "--minutes", "45", "--read", "10")
        rehearsal.forget()
        assert (record().interview, record().minutes, record().read) == (None, 90, {})


class TestHistories:
    @pytest.mark.parametrize(("version", "tables"), [(1, V2), (2, V2 + ANSWERS)])
    def test_an_older_history_is_used_and_extended(
        self, capsys: Capture, rehearsal_home: Path, version: int, tables: str
    ) -> None:
        """Months of practice are in it."""
        connection = sqlite3.connect(rehearsal_home / FILE)
        connection.executescript(tables + f"PRAGMA user_version = {version};")
        row = (noon(9), "happy_path", "attempt", "passed", "[]", 1.0, "x")
        connection.execute("INSERT INTO entries VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.commit()
        connection.close()
        out = said(capsys, "--date", iso(9))
        assert "Due for review: 1 drill." in out
        assert record().interview == TODAY + timedelta(days=9)
        assert [path.name for path in rehearsal_home.glob("*.sqlite3")] == [FILE]
        connection = sqlite3.connect(rehearsal_home / FILE)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        connection.close()

    def test_a_newer_history_is_set_aside_in_one_line(
        self, capsys: Capture, rehearsal_home: Path
    ) -> None:
        """It is somebody's history, and this version can't know what is in it."""
        progress().add_note("minutes", "45")
        connection = sqlite3.connect(rehearsal_home / FILE)
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
        connection.close()
        out = said(capsys)
        assert out.splitlines()[0].startswith("Your history in ")
        assert "90 minutes a day" in out
        assert len(list(rehearsal_home.glob(f"*-{FILE}"))) == 1

    def test_thousands_of_answers_are_replayed_once_or_twice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is replayed for each day anew takes a minute after three months."""
        from fsrs import Scheduler

        with sqlite3.connect(progress().path) as connection:
            progress().notes()  # creates the tables
            rows = [
                (noon(60 - n / 60), CARDS[n % 100].id, "good", "{}", "x", 40.0)
                for n in range(3000)
            ]
            columns = "at, card, grade, points, text, seconds"
            insert = f"INSERT INTO answers ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
            connection.executemany(insert, rows)
        connection.close()
        own, calls = Scheduler.review_card, list[int]()
        monkeypatch.setattr(
            Scheduler, "review_card", lambda *a, **k: calls.append(1) or own(*a, **k)
        )
        found = record()
        assert sum(len(one.answers) for one in found.cards) == 3000
        work_of(found, TODAY)
        by_day(found, TODAY)
        assert len(calls) <= 2 * 3000

    def test_the_pace_of_a_card_is_the_learners_own(self) -> None:
        """Ten minutes for twenty cards is a plan for somebody else."""
        for n in range(6):
            answered(CARDS[n].id, 3, seconds=150.0)
        assert card_minutes(record().answers) == 3.0
        answered(CARDS[7].id, 3, seconds=9999.0)  # went for a walk
        assert card_minutes(record().answers) == 3.0
        assert card_minutes(record().answers[:4]) == 1.5

    def test_minutes_are_measured_and_a_break_is_no_practice(self) -> None:
        """A drill that was open over lunch would fill the day."""
        budget = load("happy_path").minutes
        tried("happy_path", 2, minutes=9)
        tried("happy_path", 1, minutes=300)
        answered(CARDS[0].id, 2, seconds=120.0)
        on_call(1, 3)
        interviewed("a", 4, {"builds": 3})
        found = minutes_by_day(record(), DRILLS)
        ago = {(TODAY - day).days: minutes for day, minutes in found.items()}
        assert ago == {1: budget, 2: 9 + 2, 3: 20, 4: 30}


class TestLocalDays:
    @pytest.fixture
    def in_new_york(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The local time is New York's."""
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "America/New_York")
            time.tzset()
            yield
        time.tzset()

    def test_a_day_ends_at_the_local_midnight(self, in_new_york: None) -> None:
        """At eight in the evening in New York it's tomorrow in London."""
        evening = datetime(2026, 11, 23, 20, 30).timestamp()
        assert end_of_day(evening) == datetime(2026, 11, 24).timestamp()
        assert end_of_day(evening) - evening == 3.5 * 3600
        # On November 1, the clocks go back.
        assert end_of_day(datetime(2026, 11, 1, 0, 30).timestamp()) == (
            datetime(2026, 11, 1, 0, 30).timestamp() + 24.5 * 3600
        )

    def test_what_is_due_later_today_is_due_today(
        self, in_new_york: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A card answered at nine in the evening is due at nine; who practices at eight?"""
        card = CARDS[0].id
        evening = datetime(2026, 11, 21, 21).timestamp()
        progress().add_answer(Answer(evening, card, "again", {}, "x", 60.0))
        morning = datetime(2026, 11, 22, 8).timestamp()
        work = work_of(record(), date(2026, 11, 22))
        due = [c.id for c in work.cards if c.due and c.due <= work.today]
        assert due == [card]
        # And the deck asks for it, not for a new one.
        monkeypatch.setattr(deck, "time", SimpleNamespace(time=lambda: morning))
        found = deck._next(None)
        assert found is not None
        assert found.id == card
        yesterday = work_of(record(), date(2026, 11, 21))
        assert not [c.id for c in yesterday.cards if c.due and c.due <= yesterday.today]
        assert yesterday.spent == 1.0


def card_text(**wrong: object) -> str:
    """A scorecard with something wrong in it."""
    rows = [{"row": "a", "mark": 2}]
    return json.dumps({"format": 1, "seed": 0, "ended": 1, "minutes": 45, "rows": rows} | wrong)


class TestScorecards:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "null",
            "[" * 100_000,
            "{}",
            '{"format": 1}',
            card_text(ended="NaN"),
            card_text(rows=[]),
            card_text(rows=[{"row": "a"}]),
            card_text(rows=[{"row": "a", "mark": 9}]),
            card_text(rows=[{"row": "a", "mark": True}]),
            card_text(rows={"a": 2}),
            card_text(ended=1e99),
            card_text(minutes="long"),
        ],
    )
    def test_a_damaged_one_is_named_in_one_line(self, capsys: Capture, text: str) -> None:
        """One torn file must not take away the plan for the evening."""
        good = interviewed("good", 3, {"builds": 2})
        bad = good.parents[1] / "bad" / "scorecard.json"
        bad.parent.mkdir()
        bad.write_text(text)
        out = said(capsys)
        (line,) = [line for line in out.splitlines() if line.startswith("Skipped")]
        assert f"Skipped {bad}: it can't be read as a scorecard (" in line
        assert "1 interview" in out

    def test_a_newer_one_is_named_with_what_to_do(self, capsys: Capture) -> None:
        """Its marks may mean something else."""
        path = interviewed("new", 3, {"builds": 2})
        path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
        out = said(capsys)
        assert f"Skipped {path}" in out
        assert "update the package" in out

    def test_an_interview_that_nobody_ended_is_no_interview(self, capsys: Capture) -> None:
        """It has no marks, and counts as none of the four a learner needs."""
        path = interviewed("begun", 3, {"builds": 2})
        path.unlink()
        assert "Skipped" not in said(capsys)
        assert read_scorecards(path.parents[2]) == ([], [])

    def test_one_that_was_begun_is_offered_again(self, capsys: Capture) -> None:
        """Half an hour of it is done, and a new one would pause it for good."""
        interviewed("a", 1, {"builds": 3})
        begun("x-seed7-1", 2, minutes=45, at=33.0)
        begun("y-seed8-1", 3, minutes=30, at=5.0)
        assert [each.seed for each in read_begun()] == [7, 8]
        out = said(capsys)
        assert f"{program()} interview --seed 7" in out
        line = r"(?m)^ +22  finish the mock interview +you began it 2 days ago"
        assert re.search(line, out), "12 minutes, and the reading"
        assert "a mock interview" not in out.replace("finish the mock interview", "")

    @pytest.mark.parametrize("line", ["", '{"at": 1}', '{"did": "say", "at": "x"}'])
    def test_a_damaged_one_is_not(self, line: str, capsys: Capture) -> None:
        """It can't go on; and a plan without it is better than none."""
        interviewed("a", 1, {"builds": 3})
        folder = begun("x-seed7-1", 2)
        (folder / "events.jsonl").write_text(f"{line}\n")
        if not line:
            (folder / "interview.json").write_text("{")
        assert "finish the mock interview" not in said(capsys)

    def test_the_next_interview_is_another_one(self, capsys: Capture) -> None:
        """The same questions again measure memory."""
        interviewed("a", 9, {"builds": 4})
        on_call(1, 0)
        assert f"{program()} interview --seed 4" in said(capsys)


class TestIncidents:
    def test_a_case_with_a_debrief_counts(self) -> None:
        """A case that is still open says nothing about how it went."""
        on_call(1, 5)
        on_call(2, 3, is_right=False)
        on_call(3, 1, ends=False)
        cases, problems = read_cases(progress().path.parent)
        assert problems == []
        assert [(case.seed, case.ended, case.minutes) for case in cases] == [
            (1, noon(5), 20.0),
            (2, noon(3), 20.0),
            (3, None, 10.0),
        ]
        assert cases[0].mark > cases[1].mark >= 1
        assert cases[2].grades == {}

    def test_a_case_that_was_started_over_still_counts(self, capsys: Capture) -> None:
        """Its minutes were practice. But there is nothing to finish, and nothing to repair."""
        for days_ago, ends, is_torn in ((5, True, False), (4, False, False), (3, True, True)):
            store = on_call(1, days_ago, ends=ends)
            if is_torn:
                (store.folder / "case.json").write_text("{")
            store.set_aside()
        cases, problems = read_cases(progress().path.parent)
        assert [(case.seed, case.ended) for case in cases] == [(1, noon(5))]
        assert problems == []
        on_call(2, 1)
        assert "finish incident" not in said(capsys)

    def test_a_case_of_the_biotech_track_counts(self) -> None:
        """It was practice, too; and its seed says nothing about the general track's."""
        on_call(40, 3, track="biotech")
        on_call(1, 2)
        cases, problems = read_cases(progress().path.parent)
        assert [(case.seed, case.track) for case in cases] == [(40, "biotech"), (1, "general")]
        assert all(case.grades for case in cases)
        assert problems == []

    def test_a_case_of_the_biotech_track_can_be_finished(self, capsys: Capture) -> None:
        """The line has to open that case, and not the general one of the same seed."""
        answered(CARDS[0].id, 20)
        on_call(41, 9, ends=False, track="biotech")
        interviewed("a", 1, {"builds": 4})
        text = said(capsys, "--minutes", "200")
        assert "finish biotech incident 41" in text
        lines = [line.strip() for line in text.splitlines()]
        assert f"{program()} incident 41 --track biotech" in lines

    def test_every_row_of_the_score_says_something_about_the_rubric(self) -> None:
        """A renamed row of the score would count for nothing, in silence."""
        names = {row.name for row in score_of(draw(1), []).rows}
        assert names == set(INCIDENT_ROWS)
        assert set(INCIDENT_ROWS.values()) <= {row.id for row in RUBRIC}

    def test_events_carry_their_time_and_older_ones_do_without(self) -> None:
        """Cases from before would otherwise be from 1970."""
        store = on_call(1, 5)
        path = store.folder / "events.jsonl"
        old = [{k: v for k, v in event.items() if k != "at"} for event in store.events()]
        path.write_text("".join(json.dumps(event) + "\n" for event in old))
        (case,), problems = read_cases(progress().path.parent)
        assert problems == []
        assert case.ended == path.stat().st_mtime
        before = time.time()
        store.add("postmortem", lines={})
        assert before <= store.events()[-1]["at"] <= time.time()

    @pytest.mark.parametrize("damage", ["torn", "newer", "kind", "event", "folder"])
    def test_a_damaged_case_is_named_in_one_line(self, capsys: Capture, damage: str) -> None:
        """One torn file must not take away the plan for the evening."""
        on_call(1, 5)
        store = on_call(2, 3)
        path = store.folder / "case.json"
        if damage == "torn":
            path.write_text("{")
        elif damage == "newer":
            path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
        elif damage == "kind":
            path.write_text(path.read_text().replace(draw(2).causes[0], "gone"))
        elif damage == "event":
            (store.folder / "events.jsonl").write_text('{"did": "debrief"}\n{"no": 1}\n')
        else:
            (store.folder / "events.jsonl").unlink()
            (store.folder / "events.jsonl").mkdir()
        out = said(capsys)
        (line,) = [line for line in out.splitlines() if line.startswith("Skipped")]
        assert f"Skipped {store.folder}: it can't be read as an incident (" in line
        assert "1 incident" in out

    @pytest.mark.parametrize(
        ("played", "command"),
        [
            (0, "incident 1 --tier guided"),
            (1, "incident 2 --tier choice"),
            (2, "incident 3"),
            (-1, "incident 1"),
        ],
    )
    def test_the_next_case_is_new_and_a_bit_harder(
        self, capsys: Capture, played: int, command: str
    ) -> None:
        """The same number is the same case."""
        answered(CARDS[0].id, 20)
        for seed in range(1, played + 1):
            on_call(seed, 9)
        if played == -1:
            on_call(1, 9, ends=False)
        interviewed("a", 1, {"builds": 4})
        lines = [line.strip() for line in said(capsys, "--minutes", "200").splitlines()]
        assert f"{program()} {command}" in lines


class TestStrengths:
    def of(self, row: str) -> Strength:
        """What is known about a row."""
        return next(each for each in record().strengths if each.row.id == row)

    def test_no_evidence_is_no_mark(self) -> None:
        """A zero would be the worst mark, for something that nobody tried."""
        answered(CARDS[0].id, 3)
        assert {each.mark for each in record().strengths} == {None}
        assert weak_rows(record().strengths) == []
        assert self.of("builds").evidence == "no evidence yet"

    def test_interviews_count_most(self) -> None:
        """Drills say that you can; an interview says that you did."""
        tried("happy_path", 3, minutes=5)  # at once, in time: easy, a mark of 4
        assert self.of("builds").mark == 4
        interviewed("a", 2, {"builds": 1})
        assert self.of("builds").mark == pytest.approx((3 * 1 + 4) / 4)
        assert self.of("builds").evidence == "1 interview, 1 drill"

    def test_only_the_newest_three_interviews_count(self) -> None:
        """Otherwise nobody ever recovers from a bad first week."""
        for n, mark in enumerate([1, 4, 4, 4]):
            interviewed(f"n{n}", 9 - n, {"builds": mark})
        assert self.of("builds").mark == 4
        assert self.of("builds").total == 3

    def test_an_incident_counts_for_debugging_and_for_failures(self) -> None:
        """The cause is found or not, and the layer is fixed or not."""
        on_call(1, 3)
        (case,), _ = read_cases(progress().path.parent)
        marks = {name: 1 + 1.5 * grade for name, grade in case.grades.items()}
        assert self.of("failures").mark == marks.pop("fixed the right layer")
        assert self.of("debugs").mark == pytest.approx(sum(marks.values()) / 3)
        assert self.of("debugs").evidence == "1 incident"
        assert self.of("builds").mark is None

    def test_a_topic_counts_from_its_third_card(self) -> None:
        """One lucky answer isn't a strength."""
        of_topic = [card.id for card in CARDS if card.topic == "staff"]
        answered(of_topic[0], 3, "easy")
        answered(of_topic[1], 3, "easy")
        assert self.of("costs").mark is None
        answered(of_topic[2], 3, "again")
        assert self.of("costs").mark == 3.0
        answered(of_topic[2], 2, "easy")
        assert self.of("costs").mark == 4.0

    def test_what_interviewers_marked_low_comes_into_the_plan(self, capsys: Capture) -> None:
        """Otherwise the scorecard is read once and forgotten."""
        interviewed("a", 1, {row.id: 4 - 2.5 * (row.id == "tradeoffs") for row in RUBRIC})
        out = said(capsys)
        assert "weak in the rubric, 1.5 of 4: names the tradeoff" in out
        assert "Parallelism (chapter 17)" in out
        table = out[out.index("rubric row") :].splitlines()
        assert table[1].split() == "names the tradeoff 1.5 1 interview".split()


class TestThePicture:
    def practiced(self) -> None:
        """A week with a bit of everything."""
        for n in range(8):
            grade: Grade = "hard" if n == 0 else "again" if n == 3 else "easy"
            answered(CARDS[n].id, 7 - n % 7, grade)
        tried("happy_path", 6)
        tried("lift_to_ddp", 2, "wrong")
        on_call(1, 3)
        interviewed("a", 2, {"builds": 2, "failures": 1})

    def test_progress_is_counted_by_day(self) -> None:
        """A line that falls without a reason makes people distrust the whole picture."""
        self.practiced()
        progress().add_note("interview", iso(5))
        found = by_day(record(), TODAY)
        assert found.days == [TODAY - timedelta(days=n) for n in range(7, -1, -1)]
        assert found.passed == [0, 1, 1, 1, 1, 1, 1, 1]
        assert found.known[0] == 2
        assert found.known[3] == 3  # that day's answer was missed
        assert found.known[-1] == 8 - 2  # not the missed one, and not the one that is due
        assert found.minutes[4] == 20 + 1
        assert [day for day, _ in found.incidents] == [TODAY - timedelta(days=3)]
        # The code weighs three times as much.
        assert found.interviews == [(TODAY - timedelta(days=2), (3 * 2 + 1) / 4)]

    @pytest.mark.parametrize("is_empty", [True, False])
    def test_it_has_every_panel_with_units_and_never_a_zero_for_nothing(
        self, is_empty: bool
    ) -> None:
        """Nobody can read "12" without "minutes", or learns from a bar that isn't there."""
        if not is_empty:
            self.practiced()
        found = record()
        figure = picture(
            by_day(found, TODAY), found.strengths, num_drills=40, num_cards=264, minutes=90,
            interview=TODAY + timedelta(days=5),
        )  # fmt: skip
        figure.canvas.draw()
        known, practiced, scores, rows = figure.axes
        assert [axes.get_ylabel() for axes in (known, practiced, scores)] == [
            *("%", "minutes", "mark, 1 to 4")
        ]
        words = [
            text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text"))
        ]
        assert "interview" in words
        assert words.count("no evidence yet") == sum(s.mark is None for s in found.strengths)
        assert [label.get_text() for label in rows.get_yticklabels()] == [
            row.name for row in RUBRIC
        ]
        assert len(rows.patches) == sum(s.mark is not None for s in found.strengths)
        assert ("none yet" in words) == is_empty
        for axes in figure.axes:  # no text leaves the figure
            box = axes.get_tightbbox()
            assert box is not None
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width

    def test_a_notebook_gets_links_a_picture_and_its_words(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody who can't see the picture must get what it says."""
        self.practiced()
        shown: list[tuple[str, dict[str, str]]] = []
        monkeypatch.setattr(calling, "has_front_end", lambda: True)
        monkeypatch.setattr(
            calling, "show", lambda text, rich=None: shown.append((text, rich or {}))
        )
        monkeypatch.setattr(
            calling, "show_markdown", lambda md, text: shown.append((text, {"md": md}))
        )
        monkeypatch.setattr(calling, "notebooks_folder", lambda: Path("notebooks").absolute())
        rehearsal.today(date=iso(5))
        (_, _), (_, plan), (text, progress_shown) = shown
        links = re.findall(r"\]\(([^)]+)\)", plan["md"])
        assert len(links) >= 3
        for link in links:
            assert (Path("notebooks") / link).is_file(), link
        assert "| `ask()` |" in plan["md"]
        assert 'then `today(read="' in plan["md"]
        html = progress_shown["text/html"]
        assert re.search(r'<img alt="Progress by day: 1 drill passed, \d cards known\.', html)
        assert "Weakest row: " in html
        assert "rubric row" in text
        assert "rubric row" in html

"""Recorded interviews: read as a whole, replayed in order, compared row by row."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from recorded_interviews import checked, ended, keep, line, say

import rehearsal
from scripts import record_interviews
from rehearsal import __main__ as command_line
from rehearsal.interviews.recorded import SHIPPED, newest, recorded
from rehearsal.interviews.replay import play
from rehearsal.interviews.rubric import RUBRIC
from rehearsal.interviews.store import BadInterview, folder_of_all


def age(name: str, seconds: float) -> None:
    """Make a session look as if it had begun then."""
    path = folder_of_all() / name / "interview.json"
    os.utime(path, (seconds, seconds))


class TestWhileItRuns:
    def shown(self, capsys: pytest.CaptureFixture[str], mode: str, *more: Any) -> str:
        cells = ("def shard(): ...",)
        typed = {"did": "type", "at": 60, "file": "001.py", "problem": ""}
        keep("own", say(1, "hi"), typed, checked(60), *more, cells=cells, mode=mode)
        rehearsal.replay("own")
        return capsys.readouterr().out

    def test_real_mode_hides_what_the_graders_found(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Else a replay in the middle is the net that real mode doesn't have."""
        out = self.shown(capsys, "real")
        assert "def shard" in out
        assert "graders  " not in out
        assert "config" not in out
        assert "What the graders found is shown after its end." in out

    def test_study_mode_does_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = self.shown(capsys, "study")
        assert "live_trainer: config pass" in out
        assert "after its end" not in out

    def test_after_the_end_all_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "live_trainer: config pass" in self.shown(capsys, "real", ended())

    def test_what_was_taken_back_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        back = {"did": "take back", "at": 70, "file": "001.py", "cell": "a"}
        assert "takes shard back" in self.shown(capsys, "real", back)


class TestNames:
    def test_a_prefix_that_only_one_has_will_do(self) -> None:
        """Nobody types 2026-11-23-seed3-1."""
        keep("2026-01-02-seed3-1", say(1, "hi"))
        keep("2026-01-03-seed3-1", say(1, "hi"))
        assert recorded("2026-01-03").name == "2026-01-03-seed3-1"
        assert recorded("mid").name == "middling"

    def test_a_whole_name_wins_over_a_longer_one(self) -> None:
        """seed3-1 must stay reachable when there is a seed3-12."""
        keep("2026-01-02-seed3-1", say(1, "hi"))
        keep("2026-01-02-seed3-12", say(1, "hi"))
        assert recorded("2026-01-02-seed3-1").name == "2026-01-02-seed3-1"

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("midling", "Did you mean middling?"),
            ("2026-01-0", "2 interviews begin with '2026-01-0'"),
            ("zzzzzzzzz", "There are: weak, middling, strong, 2026-01-02-seed3-1"),
            ("", "There is no interview ''"),
            (7, "There is no interview 7"),
            ("../../etc", "There is no interview"),
            ("seed3-1", "There is no interview 'seed3-1'. Did you mean 2026-01-0"),
        ],
    )
    def test_another_name_gets_one_line_with_the_nearest(self, name: Any, says: str) -> None:
        """Otherwise one looks for it by hand."""
        keep("2026-01-02-seed3-1", say(1, "hi"))
        keep("2026-01-03-seed3-1", say(1, "hi"))
        with pytest.raises(BadInterview, match=says) as refused:
            recorded(name)
        assert "\n" not in str(refused.value)

    def test_the_newest_is_the_one_begun_last(self) -> None:
        """Names sort by seed, too."""
        for seconds, name in ((200, "2026-01-02-seed1-1"), (100, "2026-01-02-seed9-1")):
            keep(name, say(1, "hi"))
            age(name, seconds)
        assert newest().name == "2026-01-02-seed1-1"

    def test_without_any_it_says_how_to_get_one(self) -> None:
        """It's the first thing that somebody tries."""
        with pytest.raises(BadInterview, match=r"no recorded interview yet.*weak, middling"):
            rehearsal.replay()


def damage(folder: Path, what: str) -> None:
    """Damage a session."""
    header, events = folder / "interview.json", folder / "events.jsonl"
    if what == "newer":
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": 99}))
    elif what == "no json":
        header.write_text("{")
    elif what == "minutes":
        header.write_text(header.read_text().replace("20", '"soon"', 1))
    elif what == "a folder":
        events.unlink()
        events.mkdir()
    elif what == "a cell":
        (folder / "typed" / "001.py").write_bytes(b"\xff\xfe")
    else:
        events.write_text(events.read_text() + what + "\n")


class TestDamage:
    @pytest.mark.parametrize(
        "what",
        [
            "newer",
            "no json",
            "minutes",
            "a folder",
            "a cell",
            "{}",
            '{"did": "say", "at": "noon", "text": "x"}',
            '{"did": "say", "at": 1}',
            '{"did": "say", "at": true, "text": "x"}',
            '{"did": "line", "at": 1, "kind": "question", "text": "x"}',
            '{"did": "checked", "at": 1, "drill": "d", "status": "wrong", "stages": [1], '
            '"findings": []}',
            '{"did": "checked", "at": 1, "drill": "d", "status": "wrong", "stages": [], '
            '"findings": [["one"]]}',
            '{"did": "incident scored", "at": 1, "rows": 3}',
            '{"did": "end", "at": 1}',
        ],
    )
    def test_a_damaged_session_is_one_line_and_stays_as_it_is(self, what: str) -> None:
        """A traceback doesn't say which file to restore."""
        typed = {"did": "type", "at": 2, "file": "001.py", "problem": ""}
        keep("2026-01-02-seed1-1", say(1, "hi"), typed, ended(), cells=("x = 1",))
        folder = folder_of_all() / "2026-01-02-seed1-1"
        damage(folder, what)
        before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for call in (
            lambda: rehearsal.replay("2026"),
            lambda: rehearsal.compare("2026", "weak"),
            lambda: rehearsal.interviewer("2026"),
        ):
            with pytest.raises(BadInterview, match="2026-01-02-seed1-1") as refused:
                call()
            assert "\n" not in str(refused.value)
        assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before

    def test_a_line_that_a_kill_cut_short_is_left_out(self) -> None:
        """The session was killed: that's what it is there for."""
        keep("2026-01-02-seed1-1", say(1, "hi"), ended())
        path = folder_of_all() / "2026-01-02-seed1-1" / "events.jsonl"
        path.write_text(path.read_text() + '{"did": "sa')
        assert recorded("2026").is_over


class TestReplay:
    def test_it_shows_everything_in_order_with_its_minute(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What happened when is the point of a replay."""
        keep(
            "2026-01-02-seed1-1",
            line(0, "prompt", "Build it."),
            say(65, "I'd start with the data."),
            {"did": "type", "at": 130, "file": "001.py", "problem": ""},
            say(140, "That's the config."),
            checked(130),  # noted when it was done
            ended(1200),
            cells=("x = 1\n\ny = 2\n",),
        )
        rehearsal.replay()
        shown = capsys.readouterr().out
        parts = [
            "  0:00  interviewer  Build it.",
            "  1:05  you          I'd start with the data.",
            "  2:10  you          [types]",
            "| x = 1",
            "| y = 2",
            "  2:10  graders      live_trainer: config pass. Next: data.",
            "  2:13  -- sketch --",
            "  2:20  you          That's the config.",
            " 20:00  clock        The time is up.",
        ]
        places = [shown.index(part) for part in parts]
        assert places == sorted(places)

    def test_its_last_line_has_the_total(self, capsys: pytest.CaptureFixture[str]) -> None:
        """And the one of a shipped session doesn't: its form is for marking."""
        session = keep("2026-01-02-seed1-1", say(65, "Hello."), ended())
        rehearsal.replay("2026")
        assert f"{session.scorecard().percent} of 100." in capsys.readouterr().out
        rehearsal.replay("middling")
        assert "of 100" not in capsys.readouterr().out

    def test_speed_plays_minutes_per_second(self, capsys: pytest.CaptureFixture[str]) -> None:
        """At 60, a minute takes a second."""
        session = keep("2026-01-02-seed1-1", say(60, "a"), say(90, "b"), ended(1200))
        slept = list[float]()
        play(session, 60, slept.append)
        assert sum(slept) == pytest.approx(1200 / 60)
        assert len(slept) > 5
        slept.clear()
        play(session, None, slept.append)
        assert slept == []

    @pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), True, "60"])
    def test_an_impossible_speed_is_one_line(self, speed: Any) -> None:
        """It would hang, or run backwards."""
        with pytest.raises(BadInterview, match=r"speed=.*must be a number above 0") as refused:
            rehearsal.replay("weak", speed=speed)
        assert "\n" not in str(refused.value)

    def test_one_that_hasn_t_ended_can_be_replayed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It says where it stands, and how to continue."""
        keep("2026-01-02-seed1-1", say(120, "a"))
        rehearsal.replay("2026")
        shown = capsys.readouterr().out
        assert "It hasn't ended: it is at minute 2 of 20." in shown
        assert "rehearsal.interview(20, seed=1) continues it." in shown

    def test_the_incident_s_score_isn_t_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It's the answer, and the interviewer's side shows the same transcript."""
        rehearsal.replay("middling")
        assert "hard_batch" not in capsys.readouterr().out
        scored = [e for e in recorded("middling").events if e["did"] == "incident scored"]
        assert "hard_batch" in str(scored)


class TestCompare:
    def test_it_has_each_row_of_each_and_the_difference(self) -> None:
        """The rows that moved are what the next week is for."""
        cards = [recorded(name).scorecard() for name in ("weak", "strong")]
        rows = {row[0]: row[1:] for row in rehearsal.compare("weak", "strong").rows}
        for row in RUBRIC:
            first, last = (card.marks[row.id] for card in cards)
            assert rows[row.name] == (str(first), str(last), f"{last - first:+}")
        assert rows["of 100"][:2] == tuple(str(card.percent) for card in cards)
        assert rows["minutes"] == ("45", "45", "0")
        assert rows["mode"] == ("real", "real", "")
        assert str(rehearsal.compare("weak", "strong")).count("\n") == len(rows)

    def test_three_have_the_difference_of_last_and_first(self) -> None:
        """Between its neighbors it would be two columns more."""
        shown = str(rehearsal.compare("strong", "middling", "weak"))
        assert "last - first" in shown.splitlines()[0]
        assert "Lower than in strong:" in shown

    def test_by_default_it_takes_the_newest_two_that_have_ended(self) -> None:
        """One that goes on in another window isn't a result."""
        for number, name in enumerate(["a", "b", "c", "d"]):
            events = [say(1, "hi")] if name == "d" else [say(1, "hi"), ended()]
            keep(name, *events)
            age(name, 100.0 + number)
        assert rehearsal.compare().names == ("b", "c")

    def test_a_damaged_one_is_left_out_and_named(self) -> None:
        """One bad folder must not hide all others."""
        for number, name in enumerate(["a", "b", "c"]):
            keep(name, say(1, "hi"), ended())
            age(name, 100.0 + number)
        damage(folder_of_all() / "b", "{}")
        compared = rehearsal.compare()
        assert compared.names == ("a", "c")
        assert "Left out: The interview b is damaged" in str(compared)

    def test_hints_and_modes_are_told(self) -> None:
        """Marks that hints earned look like progress."""
        keep("a", say(1, "hi"), {"did": "hint", "at": 2}, ended(), mode="study")
        keep("b", say(1, "hi"), ended(), minutes=30)
        shown = rehearsal.compare("a", "b")
        assert {row[0]: row[1:] for row in shown.rows}["hints"] == ("1", "0", "-1")
        assert "Study mode has hints" in str(shown)
        assert "They differ in length" in str(shown)

    @pytest.mark.parametrize(
        ("names", "says"),
        [
            (["weak"], "two or more different"),
            (["weak", "weak"], "two or more different"),
            (["weak", "strong", "weak"], "two or more different"),
            (["weak", "open"], "open hasn't ended: it is at minute 2 of 20"),
            (["weak", "storng"], "Did you mean strong?"),
            ([], "and only a has"),
        ],
    )
    def test_what_can_t_be_compared_is_one_line(self, names: list[str], says: str) -> None:
        """Each says what to do instead."""
        keep("a", say(1, "hi"), ended())
        keep("open", say(120, "hi"))
        with pytest.raises(BadInterview, match=says) as refused:
            rehearsal.compare(*names)
        assert "\n" not in str(refused.value)


class TestCommands:
    def test_replay_and_compare_work_at_a_terminal(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Everything is there without a notebook, too."""
        assert command_line.main(["interviews", "compare", "weak", "strong"]) == 0
        assert str(rehearsal.compare("weak", "strong")) in capsys.readouterr().out
        assert command_line.main(["interviews", "replay", "weak", "--speed", "1e8"]) == 0
        assert "interviewer  Build me a trainer" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["replay", "nobody"], "There is no interview 'nobody'"),
            (["replay", "weak", "--speed", "0"], "must be a number above 0"),
        ],
    )
    def test_mistakes_are_one_line_and_2(
        self, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A script must see that it failed."""
        assert command_line.main(["interviews", *words]) == 2
        (shown,) = capsys.readouterr().err.splitlines()
        assert says in shown


class TestShipped:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_the_kept_scorecard_is_the_one_computed_today(self, name: str) -> None:
        """A change of the scoring must show up, with the rows that it moves."""
        session = recorded(name)
        kept = json.loads((session.folder / "scorecard.json").read_text("utf-8"))
        card = session.scorecard()
        assert {row["row"]: row["mark"] for row in kept["rows"]} == card.marks
        found = [[one._asdict() for one in row.evidence] for row in card.rows]
        assert [row["evidence"] for row in kept["rows"]] == found
        assert kept["percent"] == card.percent
        assert kept["weakest"] == list(card.weakest)
        assert kept["next"] == [dict(item) for item in card.next]

    def test_they_are_clearly_apart(self) -> None:
        """Three that differ by a hair teach nobody to mark."""
        weak, middling, strong = (recorded(name).scorecard().percent for name in SHIPPED)
        assert middling - weak >= 20
        assert strong - middling >= 20

    @pytest.mark.parametrize("name", SHIPPED)
    def test_nothing_in_them_is_of_the_machine_that_recorded_them(self, name: str) -> None:
        """A path of ours is noise in everybody's transcript."""
        folder = recorded(name).folder
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
        assert not [each for each in files if each.startswith(("lock", "clock", "incident/"))]
        for path in folder.rglob("*.*"):
            text = path.read_text("utf-8")
            assert not [word for word in ("/tmp/", "/home/", "/root", "/work") if word in text]

    @pytest.mark.parametrize("name", SHIPPED)
    def test_every_question_got_an_answer(self, name: str) -> None:
        """A hole in a transcript means that its text no longer fits the questions."""
        kinds = [
            event["kind"] if event["did"] == "line" else "say"
            for event in recorded(name).events
            if event["did"] in ("line", "say")
        ]
        questions = [n for n, kind in enumerate(kinds) if kind == "question"]
        assert len(questions) >= 8
        assert all(kinds[n + 1] == "say" for n in questions)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_what_was_said_and_typed_is_in_the_candidate_s_text(self, name: str) -> None:
        """A transcript that was edited by hand is no record."""
        root = Path(__file__).resolve().parents[1]
        text = (root / "scripts" / "candidates" / f"{name}.txt").read_text("utf-8")
        words = " ".join(text.split())
        session = recorded(name)
        for event in session.events:
            if event["did"] == "say":
                assert " ".join(event["text"].split()) in words
        assert all(cell.strip() in text for cell in session.cells.values())


class TestRecorder:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_a_candidate_s_text_can_be_read(self, name: str) -> None:
        """With a mistake in it, an interview would be recorded without the rest."""
        script = record_interviews.script_in(record_interviews.CANDIDATES / f"{name}.txt")
        session = recorded(name)
        assert (script.minutes, script.seed) == (session.minutes, session.seed)
        spoken = [event for event in session.events if event["did"] in ("say", "type")]
        assert len(script.entries) == len(spoken)
        assert sum(entry.is_code for entry in script.entries) == len(session.cells)

    @pytest.mark.parametrize(
        "text",
        [
            "seed 9\n@ 0:10\nhello",
            "45 minutes, seed 9\n@ 10\nhello",
            "45 minutes, seed 9\n@ 0:10 type\nx = 1",
            "45 minutes, seed 9\n@ 0:10\n\n@ 0:20\nhello",
        ],
    )
    def test_a_mistake_in_it_is_named(self, text: str, tmp_path: Path) -> None:
        """An entry that is silently dropped is an answer that nobody gives."""
        path = tmp_path / "x.txt"
        path.write_text(text)
        with pytest.raises(record_interviews.Unfit, match=r"x\.txt: "):
            record_interviews.script_in(path)

    def test_entries_follow_the_line_that_they_name(self) -> None:
        """The second look at the evidence gets the second comment."""
        comments = tuple(
            record_interviews.Entry(10, ("evidence", n), False, f"comment {n}") for n in (1, 2)
        )
        player = record_interviews.Player(record_interviews.Script(45, 9, comments))
        for at in (100.0, 200.0, 300.0):
            player.hears(line(at, "evidence", "loss:"))
        assert [(at, entry.text) for at, entry in player.due] == [
            (110.0, "comment 1"),
            (210.0, "comment 2"),
        ]
        assert player.unanswered == ["5:00 [evidence] loss:"]

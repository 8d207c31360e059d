"""The mock interview at a terminal: what is heard, who interrupts whom, how to come back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

import rehearsal
from rehearsal.__main__ import main
from rehearsal.interviews.command import begun
from rehearsal.interviews.files import File
from rehearsal.interviews.interviewer import script_of
from rehearsal.interviews import opening
from rehearsal.interviews.opening import interview
from rehearsal.interviews.spoken import entries, typed_in
from rehearsal.interviews.stdin import LinesOf
from rehearsal.interviews.store import BadInterview, stores
from rehearsal.interviews.terminal import Room

ROOT = Path(__file__).resolve().parents[1]
ASKS = "How many GPUs do we have, and does the model fit on one?"
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.timeout(120)
Step = str | float | None | type[KeyboardInterrupt] | Callable[[], object]


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the mark, no ranks start; and whatever was begun is let go of."""
    if request.node.get_closest_marker("ranks") is None:
        monkeypatch.setattr("rehearsal.interviews.checks.grade_source", passes_so_far)
        monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", no_job)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield
    for held in [*opening._open.values()]:
        held.close()


def no_job(*_: object) -> None:
    raise OSError("no job in this test")


def passes_so_far(drill: str, text: str, **_: object) -> rehearsal.Verdict:
    return rehearsal.Verdict(
        drill=drill, status="not_attempted", findings=[], stages=["config"], next_stage="data"
    )


class Person:
    """Types a script: lines, minutes of silence, Ctrl-C, things done elsewhere; then leaves."""

    def __init__(self, *steps: Step, seed: int = 1, mode: str = "real") -> None:
        self.steps, self.minute, self.is_at_end = list(steps), 0.0, False
        self.held = interview(15, seed, mode=mode, clock=lambda: 60 * self.minute)  # type: ignore[arg-type]
        self.printed = list[str]()
        self.asked_s = list[float]()

    def next(self, at_most_s: float) -> str | None:
        self.asked_s.append(at_most_s)
        if not self.steps:
            self.is_at_end = True
            return None
        step = self.steps.pop(0)
        if step is KeyboardInterrupt:
            raise KeyboardInterrupt
        if isinstance(step, float):
            self.minute += step
        elif callable(step):
            step()
        else:
            return step
        return None

    def sits(self, file: File | None = None) -> str:
        """Hold the interview; all that was printed."""
        Room(self.held, self, file=file, say=self.printed.append).hold()
        return "\n".join(self.printed)

    def did(self, what: str) -> list[str]:
        """The texts of what was done."""
        return [event.get("text", "") for event in self.held.events if event["did"] == what]


class TestWhatIsSaid:
    def test_lines_are_said_together_after_an_empty_one(self) -> None:
        """An answer has more than one line, and half of one is judged as half."""
        person = Person("First the invariant.", "Each sample once.", "", "And", "")
        person.sits()
        assert person.did("say") == ["First the invariant.\nEach sample once.", "And"]

    def test_the_answer_to_a_question_is_printed(self) -> None:
        person = Person(ASKS, "", None)
        said = person.sits()
        assert script_of(1, 15).prompt in " ".join(said.split())
        assert script_of(1, 15).situation["memory"] in " ".join(said.split())

    def test_nothing_that_was_typed_is_lost_at_the_end_of_the_input(self) -> None:
        """A script ends without an empty line; so does somebody in a hurry."""
        person = Person(ASKS)
        said = person.sits()
        assert person.did("say") == [ASKS]
        assert script_of(1, 15).situation["memory"] in " ".join(said.split())

    def test_what_is_said_in_a_pause_is_said_after_it(self) -> None:
        """Lost words have to be typed again, against the clock."""
        person = Person("/pause", "Each sample once.", "", "/resume")
        said = person.sits()
        assert "nobody has heard that yet" in said
        assert person.did("say") == ["Each sample once."]

    def test_a_command_comes_after_what_was_said_before_it(self) -> None:
        person = Person("Each sample once.", "/pause")
        person.sits()
        dids = [event["did"] for event in person.held.events]
        assert dids.index("say") < dids.index("pause")


class TestTheOtherSide:
    def test_it_speaks_while_the_candidate_is_silent(self) -> None:
        """Somebody who waits for a line never hears that five minutes have passed."""
        person = Person(None, 2.0, None, 5.5, None)
        assert "Talk to me" in person.sits() or person.did("line")[1:]
        assert len(person.did("line")) >= 3
        assert max(person.asked_s) <= 1, "no turn waits longer for a line"

    def test_it_interrupts_nobody_in_the_middle_of_a_thought(self) -> None:
        person = Person(
            None, "I'd start with the sampler,", 6.0, None, "because it decides.", ""
        )
        person.sits()
        dids = [event["did"] for event in person.held.events]
        assert dids[:3] == ["line", "say", "line"]

    def test_the_time_ends_it_and_what_was_being_said_counts(self) -> None:
        """Drafts count: the last sentence is often the best."""
        person = Person(None, "The hole is the disk.", 20.0, None)
        said = person.sits()
        assert person.held.is_over
        assert "That's time" in said
        assert person.did("say") == ["The hole is the disk."]
        assert "understands the problem" in said
        assert f"Interview {person.held.name}" in said

    def test_study_mode_shows_what_passes_and_real_mode_does_not(self) -> None:
        """An interviewer's face says nothing about the graders."""
        verdict = {"did": "checked", "at": 60.0, "file": "001.py", "drill": "live_trainer"}
        verdict |= {"status": "not_attempted", "stages": ["config"], "next_stage": "data"}
        (shown,) = entries([verdict], {}, "real")
        assert shown.text == "The interviewer ran your code."
        (shown,) = entries([verdict], {}, "study")
        assert shown.text == "Passing: config. Next: data."


class TestCode:
    def test_each_save_of_the_file_is_typed_and_replaces_the_one_before(
        self, tmp_path: Path
    ) -> None:
        """A line that was deleted must not count, and not break the next check."""
        path = tmp_path / "attempt.py"
        path.write_text("# the blank\n")
        person = Person(
            None,
            lambda: path.write_text("wrong = undefined_name\n"),
            *(None, None),
            lambda: path.write_text("right = 1\n"),
            *(None, None, None),
        )
        said = person.sits(File(path))
        typed = [event["file"] for event in person.held.events if event["did"] == "type"]
        assert [person.held.cells[name] for name in typed] == [
            "wrong = undefined_name\n",
            "right = 1\n",
        ]
        assert person.held._state.text == "right = 1"
        assert "You typed right (1 line)." in said

    def test_a_file_that_is_being_written_is_taken_when_it_is_done(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "attempt.py"
        file = File(path)
        path.write_text("half = ")
        assert file.saved(at_once=False) is None
        path.write_text("half = 1\n")
        assert file.saved(at_once=False) is None
        assert file.saved(at_once=False) == "half = 1\n"
        assert file.saved(at_once=False) is None
        path.write_text("last = 1\n")
        assert file.saved(at_once=True) == "last = 1\n", "when the time is up"

    def test_a_broken_save_leaves_the_one_before_standing(self) -> None:
        """At the end of the time, half a line must not cost the trainer."""
        person = Person()
        person.held.type("kept = 1\n", cell="attempt.py")
        person.held.type("kept = (\n", cell="attempt.py")
        assert person.held._state.text == "kept = 1"

    def test_a_file_can_be_typed_and_code_be_pasted(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_text("one = 1\n")
        person = Person(f"/type {path}", "/paste", "two = 2", "", "# /end is text here", ".")
        person.sits()
        assert sorted(person.held.cells.values()) == [
            "one = 1\n",
            "two = 2\n\n# /end is text here",
        ]

    def test_what_was_typed_is_named_in_one_line(self) -> None:
        cell = "import os\n\n\ndef b():\n    pass\n\n\na = 1\n_c = 2\n"
        assert typed_in(cell) == "You typed b and a (5 lines)."
        assert typed_in("\n".join(f"x{n} = {n}" for n in range(9))).endswith(
            "x4, x5 and 3 more (9 lines)."
        )
        assert typed_in("def broken(:") == "You typed a cell (1 line)."


class TestMistakes:
    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("/dance", "/help lists the commands"),
            ("/type nowhere.py", "nowhere.py can't be read"),
            ("/type", "needs the name of a file"),
            ("/type .", "can't be read"),
            ("/hint", "--mode study has them"),
            ("/incident look phases", "you aren't on call"),
            ("/export", "needs the name of a file"),
            ("/export x.html", "/end ends it now"),
            ("/help", "Ctrl-D leaves"),
            ("/names", "TrainConfig(*, run_dir"),
            ("/status", "15:00 of 15:00 left"),
        ],
    )
    def test_a_line_says_what_to_do_and_the_interview_continues(
        self, line: str, says: str
    ) -> None:
        """A traceback in minute 40 ends it."""
        person = Person(line, "Each sample once.", "")
        assert says in person.sits()
        assert person.did("say") == ["Each sample once."]
        assert not Path("x.html").exists()

    def test_a_file_that_is_a_folder_is_refused_before_anything_begins(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        assert main(["interview", "--file", str(tmp_path)]) == 2
        assert "is a folder" in capsys.readouterr().err
        assert list(stores()) == []

    def test_minutes_that_cannot_be_are_a_message_and_2(self, capsys: Capture) -> None:
        assert main(["interview", "--minutes", "14", "--seed", "1"]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("rehearsal: minutes=14.0: an interview takes 15 to")
        assert said.err.count("\n") == 1


class TestLeaving:
    def test_ctrl_c_pauses_and_a_second_one_leaves(self) -> None:
        """In the middle of a sentence, the phone rings."""
        person = Person(None, 3.0, KeyboardInterrupt, 5.0, KeyboardInterrupt, "never read")
        said = person.sits()
        assert "12:00. /resume lets it run again" in said
        assert f"interview --seed {person.held.seed}" in said
        assert person.held.minute == pytest.approx(3)
        assert person.steps == ["never read"]

    def test_ctrl_c_while_it_is_graded_goes_back_to_the_interview(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody typed /end too early, and would be out of the program."""
        interrupts = [True, False]

        def interrupted(*_: object) -> bool:
            if interrupts.pop(0):
                raise KeyboardInterrupt
            return True

        monkeypatch.setattr("rehearsal.interviews.checks.Graders.wait", interrupted)
        person = Person(None, 3.0, "/end", "/resume", "Still here.", "", "/end")
        said = person.sits()
        assert "Not ended: " in said
        assert "paused at minute 3 of 15. /resume continues it, /end ends it" in said
        assert person.did("say") == ["Still here."]
        assert person.held.is_over

    def test_the_end_of_the_input_leaves_it_unfinished_and_it_can_be_continued(
        self, capsys: Capture
    ) -> None:
        person = Person(ASKS, "", None, 4.0)
        person.sits()
        assert not person.held.is_over
        again = begun(45, 1, "real", None)
        said = capsys.readouterr().out
        assert f"Continuing the interview {person.held.name} at minute 4 of 15" in said
        assert "/end this one first" in said
        assert f"Interviewer: {person.did('line')[-1]}" in " ".join(said.split())
        again.close()

    def test_without_a_seed_the_unfinished_one_is_offered(self, capsys: Capture) -> None:
        """Nobody remembers the seed of yesterday."""
        first = Person(2.0)
        first.sits()
        taken = begun(15, None, "real", Answers(""))
        assert (taken.name, taken.seed) == (first.held.name, 1)
        taken.close()
        new = begun(15, None, "real", Answers("n"))
        assert new.name != first.held.name
        assert f"seed {new.seed}" in capsys.readouterr().out
        new.close()
        with pytest.raises(BadInterview, match="nothing was begun"):
            begun(15, None, "real", Answers())
        scripted = begun(15, None, "real", None)
        assert scripted.name not in (first.held.name, new.name)
        assert f"interview --seed {new.seed} continues it" in capsys.readouterr().out
        scripted.close()

    def test_after_the_end_it_can_still_be_exported(self, tmp_path: Path) -> None:
        person = Person("/end", "/status", "too late", "", f"/export {tmp_path / 'x.html'}")
        said = person.sits()
        assert said.count("understands the problem") >= 2
        assert "is over, so say() changes nothing. /status shows how it went" in said
        assert person.did("say") == []


class Answers:
    """A person who answers these lines."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.is_at_end = list(lines), False

    def next(self, at_most_s: float) -> str | None:
        return self.lines.pop(0) if self.lines else None


class TestLines:
    def test_a_line_is_whole_or_not_there_yet(self) -> None:
        """The interviewer speaks meanwhile, and half a line isn't said."""
        read, write = os.pipe()
        lines = LinesOf(read)
        assert lines.next(0) is None
        euro = "5 € a GPU hour\nand ".encode()
        os.write(write, euro[:3])
        assert lines.next(0) is None
        os.write(write, euro[3:])
        assert lines.next(0) == "5 € a GPU hour"
        assert lines.next(0) is None
        assert not lines.is_at_end
        os.write(write, b"more\r\n\n\xff")
        os.close(write)
        assert [lines.next(0) for _ in range(4)] == ["and more", "", "\ufffd", None]
        assert lines.is_at_end
        os.close(read)


class TestTheList:
    def test_it_has_each_session_with_what_became_of_it(self, capsys: Capture) -> None:
        assert main(["interviews"]) == 0
        assert "No interview yet" in capsys.readouterr().out
        ended, left = Person("/end", seed=1), Person(6.0, None, seed=2, mode="study")
        ended.sits()
        left.sits()
        broken = next(stores()).folder.with_name("2020-01-01-seed9-1")
        broken.mkdir()
        (broken / "interview.json").write_text("{}")
        assert main(["interviews"]) == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert lines[ended.held.name].endswith(f"{ended.held.scorecard().percent} of 100")
        assert lines[left.held.name].endswith("unfinished at minute 6 of 15")
        assert "study" in lines[left.held.name]
        assert "can't be read" in lines[broken.name]

    def test_a_scorecard_is_shown_as_it_was_given_out(self, capsys: Capture) -> None:
        """Its advice is typed at a shell here."""
        person = Person("/hint", "/end", seed=3, mode="study")
        person.sits()
        assert main(["interviews", "show", person.held.name[:6]]) == 0
        said = capsys.readouterr().out
        assert "Study mode, 1 hint" in said
        for row in person.held.scorecard().rows:
            assert str(row) in said
        assert " ask --topic " in said
        assert "ask(" not in said
        assert "start(" not in said

    def test_a_name_that_none_or_several_have_is_a_message(self, capsys: Capture) -> None:
        Person("/end", seed=1).sits()
        Person("/end", seed=2).sits()
        assert main(["interviews", "show", "nothing"]) == 2
        assert "There is no interview 'nothing'" in capsys.readouterr().err
        assert main(["interviews", "show", "20"]) == 2
        said = capsys.readouterr().err
        assert "-seed1-1, " in said
        assert "-seed2-1" in said

    def test_one_that_has_not_ended_says_how_to_continue(self, capsys: Capture) -> None:
        person = Person(seed=7)
        person.sits()
        assert main(["interviews", "show", person.held.name]) == 2
        assert "interview --minutes 15 --seed 7 continues it" in capsys.readouterr().err


@pytest.mark.ranks
class TestARealTerminal:
    def test_a_person_talks_is_interrupted_leaves_and_returns(
        self, rehearsal_home: Path
    ) -> None:
        """Only a terminal sends Ctrl-C and Ctrl-D, and only there is a prompt."""
        command = [sys.executable, "-m", "rehearsal", "interview"]
        env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
        words = ["--minutes", "15", "--seed", "5"]
        first = pexpect.spawn(
            *spawned([*command, *words]), env=env, encoding="utf-8", timeout=90
        )
        first.expect(r"14:\d\d clarify> ")
        first.sendline(ASKS)
        first.expect(r"\.\.\. ")
        first.sendline("")
        first.expect("Interviewer: ")
        first.expect("clarify> ")
        first.sendintr()
        first.expect(r"The clock stands at 14:\d\d")
        first.expect("paused> ")
        first.sendline("/resume")
        first.expect("clarify> ")
        first.sendeof()
        first.expect("waits at minute 0 of 15")
        first.expect(pexpect.EOF)
        first.close()
        assert first.exitstatus == 0
        second = pexpect.spawn(*spawned(command), env=env, encoding="utf-8", timeout=90)
        second.expect("Press Enter to continue it")
        second.sendline("")
        second.expect("You: How many GPUs")
        second.expect("clarify> ")
        second.sendline("/end")
        second.expect("The interview is over")
        second.expect("over> ")
        second.sendeof()
        second.expect(pexpect.EOF)
        second.close()
        assert second.exitstatus == 0
        assert "of 100" in listed()

    def test_a_script_can_hold_one_through_a_pipe(self, rehearsal_home: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "rehearsal", "interview", "--seed", "5"],
            input=f"{ASKS}\n\n/end\n",
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert script_of(5, 45).situation["memory"] in " ".join(done.stdout.split())
        assert "clarify>" not in done.stdout
        assert "\x1b" not in done.stdout
        assert "understands the problem" in done.stdout


def spawned(command: list[str]) -> tuple[str, list[str]]:
    return command[0], command[1:]


def listed() -> str:
    return subprocess.run(
        [sys.executable, "-m", "rehearsal", "interviews"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout

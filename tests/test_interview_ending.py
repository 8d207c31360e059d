"""The end of a mock interview: who waits for the graders, and what an interrupt leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rehearsal
from rehearsal.interviews import command, ending, opening
from rehearsal.interviews.checks import Graders
from rehearsal.interviews.opening import interview
from rehearsal.interviews.session import Interview
from rehearsal.interviews.store import BadInterview, Store

ROOT = Path(__file__).resolve().parents[1]
LONG_S = 60.0


class SlowGraders:
    """Graders that take as long as a test wants."""

    def __init__(self) -> None:
        self.may_finish = threading.Event()

    def __call__(self, drill: str, text: str, **_: object) -> rehearsal.Verdict:
        assert self.may_finish.wait(LONG_S)
        return rehearsal.Verdict(
            drill=drill, status="not_attempted", findings=[], stages=["config"]
        )


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SlowGraders]:
    monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
    graders = SlowGraders()
    monkeypatch.setattr("rehearsal.interviews.checks.grade_source", graders)
    monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", no_job)
    yield graders
    graders.may_finish.set()
    for held in [*opening._open.values()]:
        held._graders.wait(LONG_S)
        held.close()


def no_job(*_: object) -> None:
    raise OSError("no job in this test")


class Told:
    """What the end says, and when a test may go on."""

    def __init__(self, held: Interview) -> None:
        self.lines: list[str] = []
        self.something = threading.Event()
        held.tell = self

    def __call__(self, text: str) -> None:
        self.lines.append(text)
        self.something.set()


def begun(minutes: float = 15) -> Interview:
    """An interview in real time, with a cell that the graders have."""
    held = interview(minutes, 1)
    held.next()
    held.type("x = 1\n")
    return held


def interrupted_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Ctrl-C as soon as a method is called, the first time."""
    real = getattr(owner, name)

    def once(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, once)


class TestWhoWaits:
    def test_it_says_what_takes_so_long_while_it_does(self, slow: SlowGraders) -> None:
        """A cell that shows nothing for a minute looks as if it hangs, and gets killed."""
        held = begun()
        told = Told(held)
        ends = threading.Thread(target=held.end)
        ends.start()
        assert told.something.wait(LONG_S)
        assert told.lines == [ending.GRADING]
        assert ending.SOON_S < 1
        assert held.is_ending
        assert "being graded" in repr(held)
        slow.may_finish.set()
        ends.join(LONG_S)
        assert held.is_over
        assert not held.is_ending
        assert any(event["did"] == "checked" for event in held.events)

    def test_nothing_is_said_if_nothing_takes_long(self, slow: SlowGraders) -> None:
        slow.may_finish.set()
        held = begun()
        told = Told(held)
        held.end()
        assert told.lines == []

    def test_meanwhile_nothing_is_taken_and_nobody_waits(self, slow: SlowGraders) -> None:
        """What is said to somebody who grades is lost; a cell that blocks says nothing."""
        held = begun()
        told = Told(held)
        ends = threading.Thread(target=held.end)
        ends.start()
        assert told.something.wait(LONG_S)
        with pytest.raises(BadInterview, match=r"is being graded, so say\(\) changes nothing"):
            held.say("One more thing")
        held.resume()
        assert held.is_paused
        assert held.next() is None
        slow.may_finish.set()
        ends.join(LONG_S)

    def test_a_second_end_waits_for_the_first_and_says_so(self, slow: SlowGraders) -> None:
        """A cell with end() and scorecard(), while the panel has ended it already."""
        held = begun()
        told = Told(held)
        first = threading.Thread(target=held.end)
        first.start()
        assert told.something.wait(LONG_S)
        told.something.clear()
        cards: list[Any] = []

        def cell() -> None:
            held.end()
            cards.append(held.scorecard())

        second = threading.Thread(target=cell)
        second.start()
        assert told.something.wait(LONG_S)
        slow.may_finish.set()
        second.join(LONG_S)
        first.join(LONG_S)
        assert len(cards) == 1
        assert [event["did"] for event in held.events].count("end") == 1

    def test_graders_that_never_finish_are_named(
        self, slow: SlowGraders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the marks seem to be about the last cell."""
        monkeypatch.setattr(ending, "LAST_CHECK_S", 0.01)
        held = begun()
        told = Told(held)
        held.end()
        assert told.lines == [ending.GRADING, ending.UNGRADED]
        assert held.is_over


class TestCalledBack:
    def test_from_another_thread_it_is_paused_and_nobody_waits(self, slow: SlowGraders) -> None:
        """A panel's thread can't be interrupted."""
        held = begun()
        told = Told(held)
        ends = threading.Thread(target=held.end, daemon=True)
        ends.start()
        assert told.something.wait(LONG_S)
        held.call_back()
        ends.join(LONG_S / 4)
        assert not ends.is_alive()
        assert not held.is_over
        assert held.is_paused
        assert "Not ended: " in told.lines[-1]
        assert ending.UNGRADED not in told.lines
        held.resume()
        slow.may_finish.set()
        held.end()
        assert held.is_over

    def test_at_any_other_time_it_changes_nothing(self, slow: SlowGraders) -> None:
        slow.may_finish.set()
        held = begun()
        held.call_back()
        assert not held.is_paused
        held.end()
        held.call_back()
        assert held.is_over


class TestAnInterrupt:
    def test_leaves_it_paused_and_it_goes_on(
        self, slow: SlowGraders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody who pressed End by mistake, or doesn't want to wait."""
        held = begun()
        told = Told(held)
        interrupted_at(monkeypatch, Graders, "wait")
        with pytest.raises(KeyboardInterrupt):
            held.end()
        assert not held.is_over
        assert held.is_paused
        assert not held.is_ending
        assert "Not ended: " in told.lines[-1]
        assert "resume() continues it, end() ends it" in told.lines[-1]
        held.resume()
        held.say("Still here")
        slow.may_finish.set()
        held.end()
        assert held.is_over
        dids = [event["did"] for event in held.events if event["did"] != "checked"]
        assert dids[-4:] == ["pause", "resume", "say", "end"]

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (Graders, "wait"),
            (ending, "scorecard_of"),
            (Store, "keep_scorecard"),
            (ending.Record, "add"),
        ],
    )
    def test_at_any_moment_leaves_a_session_that_can_be_continued(
        self, owner: Any, name: str, slow: SlowGraders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half an end would be neither continued nor marked."""
        slow.may_finish.set()
        held = begun()
        held._graders.wait(LONG_S)
        Told(held)
        interrupted_at(monkeypatch, owner, name)
        with pytest.raises(KeyboardInterrupt):
            held.end()
        assert not held.is_over
        held.close()
        assert [store.name for store in command.unfinished_ones()] == [held.name]
        assert "unfinished at minute" in command.standing_of(held._store)
        again = interview(15, 1)
        assert again.name == held.name
        again.say("Where were we?")
        again.end()
        assert again._store.has_ended()
        assert "of 100" in command.standing_of(again._store)

    def test_after_the_time_is_up_the_time_is_called_once(
        self, slow: SlowGraders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = begun()
        Told(held)
        held._watch._spent = 15 * 60.0
        interrupted_at(monkeypatch, Graders, "wait")
        with pytest.raises(KeyboardInterrupt):
            held.next()
        slow.may_finish.set()
        held.resume()
        assert held.next() == "That's time. Whatever you've typed by now counts."
        assert held.is_over
        kinds = [event["kind"] for event in held.events if event["did"] == "line"]
        assert kinds.count("end") == 1


PROGRAM = """
import threading
import rehearsal
import rehearsal.interviews.checks as checks
checks.grade_source = lambda *_, **__: threading.Event().wait()  # never comes back
held = rehearsal.interview(15, seed=1)
held.next()
held.type("x = 1")
held.end()
"""


@pytest.mark.ranks
def test_two_real_interrupts_leave_it_resumable(rehearsal_home: Path) -> None:
    """People press it twice; the second must not tear what the first one mends."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == ending.GRADING
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONG_S)
    assert process.returncode != 0
    held = interview(15, 1, clock=lambda: 0.0)
    assert not held.is_over
    held.say("Still here")
    held.end()
    assert held.is_over

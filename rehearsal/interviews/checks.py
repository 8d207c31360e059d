"""Judges what is typed, in the background: the same graders as the drills'."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rehearsal.grading.check import grade_source
from rehearsal.grading.drill import load
from rehearsal.grading.verdict import Verdict
from rehearsal.interviews.built import defined_in
from rehearsal.interviews.record import Record

NOTHING = {"status": "not_attempted", "stages": [], "next_stage": "", "findings": []}
# A text is judged as the live trainer, stage by stage, unless it has all names of another drill
# and none of what makes the live trainer one.
DRILL = "live_trainer"
STEP_S = 0.2  # how soon somebody who waits notices that they needn't
OTHERS = ("happy_path", "resume_after_failure", "lift_to_ddp", "instrument_performance")


def drill_for(text: str) -> str:
    """The drill whose grader fits what a text defines."""
    defined = defined_in(text)
    for name in OTHERS:
        needs = set(load(name).needs)
        if needs <= defined and not (set(load(DRILL).needs) - needs) & defined:
            return name
    return DRILL


def facts_of_verdict(verdict: Verdict) -> dict[str, Any]:
    """What an event keeps of a verdict."""
    return {
        "drill": verdict.drill,
        "status": verdict.status,
        "stages": list(verdict.stages),
        "next_stage": verdict.next_stage,
        "findings": [list(finding) for finding in verdict.findings],
        "seconds": round(verdict.seconds, 2),
    }


class Checks:
    """At most one check runs; of those that wait, only the newest text counts.

    Args:
        done: called with what the verdict says, and what was given to ``start``; in the
            background, unless ``waits``.
        waits: run each check before ``start`` returns, for a program that drives the clock.
    """

    def __init__(self, done: Callable[[dict[str, Any], Any], None], *, waits: bool) -> None:
        self._done, self._waits = done, waits
        self._wanted: tuple[str, str, int, Any] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.nobody_waits = threading.Event()  # set by another thread, it ends a wait

    def start(self, drill: str, text: str, seed: int, about: Any) -> None:
        """Judge a text."""
        if self._waits:
            self._judge(drill, text, seed, about)
            return
        with self._lock:
            self._wanted = (drill, text, seed, about)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def wait(self, at_most_s: float) -> bool:
        """Wait for what is running; False if it is still running then, or nobody waits."""
        until = time.monotonic() + at_most_s
        while (thread := self._thread) is not None and not self.nobody_waits.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            thread.join(min(left, STEP_S))
        return self._thread is None

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            self._judge(*wanted)

    def _judge(self, drill: str, text: str, seed: int, about: Any) -> None:
        try:
            found = facts_of_verdict(grade_source(drill, text, file="interview.py", seed=seed))
        except Exception as error:  # the interview continues without this verdict
            found = {
                "drill": drill,
                "status": "not checked",
                "stages": [],
                "next_stage": "",
                "findings": [],
                "problem": f"{type(error).__name__}: {error}",
            }
        self._done(found, about)


class Graders:
    """Judges all that was typed so far, each time something was; verdicts become events.

    Args:
        waits: as for ``Checks``.
    """

    def __init__(self, record: Record, seed: int, *, waits: bool) -> None:
        self._record, self._seed = record, seed
        self._checks = Checks(self._found, waits=waits)
        left = record.unjudged  # if the process died before its verdict came
        if left is not None and not record.is_over:
            self.judge(left["file"], left["at"])

    def judge(self, name: str, at: float) -> None:
        """A cell was typed or taken back, at this second."""
        state = self._record.state
        if state.text.strip():
            self._checks.start(drill_for(state.text), state.text, self._seed, (name, at))
        elif state.checked:
            self._found({"drill": DRILL, **NOTHING}, (name, at))

    def wait(self, at_most_s: float) -> bool:
        """Wait for the last verdict; False if it hasn't come by then, or nobody waits."""
        return self._checks.wait(at_most_s)

    @property
    def nobody_waits(self) -> threading.Event:
        """Set by another thread, it ends a wait."""
        return self._checks.nobody_waits

    def _found(self, found: dict[str, Any], about: tuple[str, float]) -> None:
        name, at = about
        if not self._record.is_over:  # else the end has waited long enough
            self._record.add("checked", at, file=name, **found)

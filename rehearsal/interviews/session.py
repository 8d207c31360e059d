"""A mock interview, from the prompt to the scorecard.

interview = rehearsal.interview(45, seed=3)
interview.next()                 what the interviewer says now, if anything
interview.say("Before I type...")
interview.type(source)           a cell, or the whole notebook
interview.end()
interview.scorecard()
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from rehearsal.interviews.boxes import LEAST, MOST, Box, box_at
from rehearsal.interviews.built import why_unparsable
from rehearsal.interviews.checks import Checks, drill_for
from rehearsal.interviews.interviewer import Line, Script, next_line, script_of
from rehearsal.interviews.on_call import OnCall
from rehearsal.interviews.scorecard import Scorecard, scorecard_of
from rehearsal.interviews.second_opinion import SecondOpinion
from rehearsal.interviews.state import State, state_of
from rehearsal.interviews.store import BadInterview, Event, Store, new_store, stores

Mode = Literal["real", "study"]
_open: dict[str, Interview] = {}  # of this process
LAST_CHECK_S = 90.0  # how long the end waits for the graders
LAST_OPINION_S = 10.0
TICK_S = 5.0  # how often the clock is kept, in case the process dies
_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def _in_turn(
    call: Callable[Concatenate[Interview, _Given], _Returned],
) -> Callable[Concatenate[Interview, _Given], _Returned]:
    """One call at a time: in a notebook, the interviewer speaks from another thread."""

    @functools.wraps(call)
    def waits(self: Interview, /, *args: _Given.args, **named: _Given.kwargs) -> _Returned:
        with self._turn:
            return call(self, *args, **named)

    return waits


class Interview:
    """A session. ``rehearsal.interview`` makes it."""

    def __init__(
        self, store: Store, clock: Callable[[], float], *, is_simulated: bool = False
    ) -> None:
        header = store.header()
        self.minutes: float = header["minutes"]
        self.seed: int = header["seed"]
        self.mode: Mode = header["mode"]
        self.name = store.name
        self._store, self._clock = store, clock
        self._turn = threading.RLock()
        self._script: Script = script_of(self.seed, self.minutes)
        self._checks = Checks(self._checked, waits=is_simulated)
        self._on_call = OnCall(store.folder / "incident", self.seed, waits=is_simulated)
        self._second = SecondOpinion(self._opinion, waits=is_simulated)
        self._events = store.events()
        self._cells = {
            event["file"]: store.cell(event["file"])
            for event in self._events
            if event["did"] == "type"
        }
        # While nothing ran, nothing passed.
        self._spent = max([store.clock(), *(event["at"] for event in self._events)])
        self._since: float | None = clock()
        self._kept = self._spent
        self._check_what_is_left()

    # ------------------------------------------------------------ the interview

    @property
    def prompt(self) -> str:
        """What the interview begins with."""
        return self._script.prompt

    @property
    def names(self) -> Mapping[str, str]:
        """The names that the graders call in what you type, with their signatures."""
        from rehearsal.grading.drill import load

        return load("live_trainer").needs

    @property
    def minute(self) -> float:
        """Where the clock is."""
        return self._seconds / 60

    @property
    def box(self) -> Box:
        """The part of the interview that the clock is in."""
        return box_at(self.minute, self.minutes)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._state.ended is not None

    @property
    def is_paused(self) -> bool:
        """Whether the clock stands still."""
        return self._since is None

    @property
    def incident(self) -> Any:
        """The incident, once the pager has gone off: look(), diagnose(), fix(). Else None."""
        return self._on_call.case if self._state.incident_at is not None else None

    @_in_turn
    def next(self) -> str | None:
        """What the interviewer says now; None to go on. Ask again until there is nothing."""
        self._tick()
        if self.is_paused or self.is_over:
            return None
        state = self._state
        if self.minute >= 0.5 * self.minutes:
            self._on_call.prepare(state.facts)
        line = next_line(
            self._script, state, self.minute, is_diagnosed=self._on_call.is_diagnosed
        )
        if line is None:
            return None
        if line.kind == "end":
            self._say_line(line)
            self.end(why="time")
            return line.text
        if line.kind in ("alert", "evidence"):
            filled = self._on_call.fill(line, state.unseen)
            if filled is None:
                return None  # the job still runs
            line = filled
        self._say_line(line)
        return line.text

    @_in_turn
    def say(self, text: str) -> None:
        """Say something. It answers the question that is open, or narrates.

        Raises:
            BadInterview: if the interview is over or paused, or there are no words.
        """
        self._must_run("say")
        if not isinstance(text, str) or not text.strip():
            raise BadInterview("say() got no words, so nothing was kept. Pass what you'd say.")
        self._add("say", text=text.strip())
        state = self._state
        if self._second.is_on and state.asked and not state.in_incident:
            card, answer = (
                state.asked[-1].card,
                " ".join(a.text for a in state.asked[-1].answers),
            )
            self._add("opinion asked", card=card.id)
            self._second.hear(card, answer)

    @_in_turn
    def type(self, source: str, *, cell: str | None = None) -> None:
        """Type a cell. Judged in the background, with the cells before it.

        A name that a later cell defines again replaces the earlier one, as in a notebook.

        Args:
            cell: which one it is, for an editor that knows. Typed again, it replaces what it
                was, unless the new text doesn't parse.

        Raises:
            BadInterview: if the interview is over or paused, or it isn't text.
        """
        self._must_run("type")
        if not isinstance(source, str):
            raise BadInterview(
                f"type() got {type(source).__name__}, not the text of a cell, so nothing was "
                "kept. Pass the source as a string."
            )
        name = self._store.keep_cell(source)
        self._cells[name] = source
        problem = why_unparsable(source)
        self._add("type", file=name, problem=problem, cell=cell)
        self._check(name)

    @_in_turn
    def pause(self) -> None:
        """Stop the clock until ``resume``.

        Raises:
            BadInterview: if it is over.
        """
        if self.is_over:
            raise BadInterview(f"The interview {self.name} is over, so there is no clock.")
        if self._since is not None:
            self._add("pause")
            self._spent, self._since = self._seconds, None

    @_in_turn
    def resume(self) -> None:
        """Let the clock run again."""
        if self._since is None and not self.is_over:
            self._since = self._clock()
            self._add("resume")

    @_in_turn
    def hint(self) -> str:
        """In study mode: what a strong answer to the open question says. Counted.

        Raises:
            BadInterview: in real mode, or if it is over or paused.
        """
        if self.mode != "study":
            raise BadInterview(
                'There are no hints in real mode. interview(..., mode="study") has them.'
            )
        self._must_run("hint")
        from rehearsal.interviews.boxes import PURPOSE

        asked = self._state.asked[-1:]
        self._add("hint")
        if asked:
            points = asked[0].points
            missing = [
                point.text for point in asked[0].card.points if points[point.id][0] != "covered"
            ]
            if missing:
                return "Still missing:\n" + "\n".join(f"- {text}" for text in missing)
        return f"{self.box.name}: {PURPOSE[self.box.name]}"

    @_in_turn
    def end(self, *, why: str = "asked") -> None:
        """End it, now. What has been typed by now counts. Harmless if it is over."""
        if self.is_over:
            return
        if self._since is not None:
            self._spent, self._since = self._seconds, None
        self._checks.wait(LAST_CHECK_S)
        self._second.wait(LAST_OPINION_S)
        if self._state.incident_at is not None:
            # With it, the marks follow from the events alone, on any machine.
            self._add("incident scored", rows=self._on_call.score())
        self._add("end", why=why)
        card = self._made()
        self._store.keep_scorecard(
            {
                "name": self.name,
                "ended": time.time(),
                "minutes": self.minutes,
                "spent_minutes": round(card.minutes, 2),
                "seed": self.seed,
                "mode": self.mode,
                "percent": card.percent,
                "rows": [
                    {
                        "row": mark.row,
                        "mark": mark.mark,
                        "evidence": [one._asdict() for one in mark.evidence],
                    }
                    for mark in card.rows
                ],
                "weakest": list(card.weakest),
                "next": [dict(item) for item in card.next],
            }
        )
        self._store.release()

    @_in_turn
    def close(self) -> None:
        """Let go of it without ending it, so that somebody else may continue it."""
        if self._since is not None:
            self._spent, self._since = self._seconds, None
            self._store.keep_clock(self._spent)
        self._store.release()
        _open.pop(self.name, None)

    def scorecard(self) -> Scorecard:
        """The marks, with their evidence.

        Raises:
            BadInterview: before the end, because looking would give the rest away.
        """
        if not self.is_over:
            raise BadInterview(
                f"The interview {self.name} is at minute {self.minute:.0f} of "
                f"{self.minutes:g}. The scorecard opens at its end; end() ends it now."
            )
        return self._made()

    def export(self, path: str | Path) -> Path:
        """Write the scorecard and the whole session as one HTML page.

        Raises:
            BadInterview: before the end, or if there is a file already, or it can't be written.
        """
        from rehearsal.interviews.export import write_page

        began = self._store.header()["began"]
        return write_page(
            self.scorecard(), self._events, self._cells, self.minutes, Path(path), began=began
        )

    @property
    def events(self) -> list[Event]:
        """All that happened, in order."""
        return list(self._events)

    @property
    def cells(self) -> Mapping[str, str]:
        """The text of each cell, by the name that its event has."""
        return dict(self._cells)

    def __repr__(self) -> str:
        left = max(0.0, self.minutes - self.minute)
        state = "over" if self.is_over else "paused" if self.is_paused else self.box.name
        return f"Interview {self.name}: {state}, {left:.0f} of {self.minutes:g} minutes left."

    # ------------------------------------------------------------ inside

    @property
    def _seconds(self) -> float:
        running = 0.0 if self._since is None else max(0.0, self._clock() - self._since)
        return float(min(self._spent + running, 60 * self.minutes))

    @property
    def _state(self) -> State:
        return state_of(self._events, self._cells)

    def _add(self, did: str, **facts: Any) -> None:
        self._events.append(self._store.add(did, self._seconds, **facts))
        self._kept = self._seconds

    def _say_line(self, line: Line) -> None:
        self._add("line", text=line.text, kind=line.kind, **line.facts)

    def _tick(self) -> None:
        """Keep the clock now and then: after a crash, it continues from there."""
        if (
            not self.is_over
            and self._seconds - self._kept >= TICK_S
            and self._since is not None
        ):
            self._store.keep_clock(self._seconds)
            self._kept = self._seconds

    def _must_run(self, call: str) -> None:
        if self.is_over:
            raise BadInterview(
                f"The interview {self.name} is over, so {call}() changes nothing. "
                "scorecard() shows how it went."
            )
        if self.is_paused:
            raise BadInterview(f"The interview {self.name} is paused. resume() continues it.")

    def _check(self, name: str) -> None:
        state = self._state
        text = state.text
        if not text.strip():
            return
        self._checks.start(drill_for(text), text, self.seed, (name, self._seconds))

    def _check_what_is_left(self) -> None:
        """Judge the last cell, if the process died before its verdict came."""
        judged = {event["file"] for event in self._events if event["did"] == "checked"}
        typed = [event["file"] for event in self._events if event["did"] == "type"]
        if typed and typed[-1] not in judged and not self.is_over:
            self._check(typed[-1])

    def _checked(self, found: dict[str, Any], about: tuple[str, float]) -> None:
        name, at = about
        if self.is_over:
            return  # the end has waited long enough, and the marks are out
        self._events.append(self._store.add("checked", at, file=name, **found))

    def _opinion(self, found: dict[str, Any]) -> None:
        if not self.is_over:
            self._add("opinion", **found)

    def _made(self) -> Scorecard:
        state = self._state
        return scorecard_of(self.name, state, self.minutes, state.incident_rows)


def interview(
    minutes: float = 45,
    seed: int = 0,
    *,
    mode: Mode = "real",
    clock: Callable[[], float] | None = None,
) -> Interview:
    """Begin a mock interview, or continue the one that was begun with this seed.

    Args:
        minutes: how long it is, from 15.
        seed: draws the prompt, the situation, the questions and the incident.
        mode: "study" has hints; "real" has none.
        clock: returns seconds; a program that passes one drives the interview, and each check
            runs before ``type`` returns.

    Raises:
        BadInterview: if a value isn't possible, or the session can't be continued.
    """
    if (
        isinstance(minutes, bool)
        or not isinstance(minutes, int | float)
        or not (LEAST <= minutes <= MOST)
    ):
        raise BadInterview(
            f"minutes={minutes!r}: an interview takes {LEAST} to {MOST} minutes; with less, "
            "there is no time for the second half. Nothing was begun."
        )
    if type(seed) is not int or seed < 0:
        raise BadInterview(f"seed={seed!r}: must be a whole number, 0 or more.")
    if mode not in get_args(Mode):
        raise BadInterview(f"mode={mode!r}: must be real or study.")
    if clock is not None and not callable(clock):
        raise BadInterview(f"clock={clock!r}: must be a function that returns seconds.")
    found = unfinished(seed)
    if found is not None and found.name in _open and clock is None:
        return _open[found.name]  # the cell ran twice
    store = found or new_store(seed)
    if found is None:
        store.create(minutes=minutes, seed=seed, mode=mode, began=time.time())
    else:
        detached = _open.pop(store.name, None)
        if detached is not None:
            detached.close()
    store.take()
    session = Interview(store, clock or time.monotonic, is_simulated=clock is not None)
    _open[session.name] = session
    if found is not None:
        print(
            f"Continuing the interview {session.name} at minute {session.minute:.0f} of "
            f"{session.minutes:g} ({session.mode} mode); the time in between doesn't count. "
            "To begin a new one, end() this one first."
        )
    return session


def unfinished(seed: int) -> Store | None:
    """The newest session of a seed that has not ended.

    Raises:
        BadInterview: if it can't be read.
    """
    for store in reversed(list(stores())):
        if not store.name.partition("-seed")[2].startswith(f"{seed}-"):
            continue
        store.header()
        is_over = any(event["did"] == "end" for event in store.events())
        return None if is_over else store
    return None

"""A mock interview, from the prompt to the scorecard.

interview = rehearsal.interview(45, seed=3)
interview.next()                 what the interviewer says now, if anything
interview.say("Before I type...")
interview.type(source)           a cell, or the whole notebook
interview.end()
interview.scorecard()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from rehearsal.interviews.boxes import Box, box_at
from rehearsal.interviews.built import has_code, why_unparsable
from rehearsal.interviews.checks import Graders
from rehearsal.interviews.ending import Ending, Parts
from rehearsal.interviews.hints import hint_for
from rehearsal.interviews.interviewer import Line, Script, next_line, script_of
from rehearsal.interviews.on_call import OnCall
from rehearsal.interviews.record import Record
from rehearsal.interviews.scorecard import Scorecard, scorecard_of
from rehearsal.interviews.second_opinion import SecondOpinion
from rehearsal.interviews.state import State
from rehearsal.interviews.stopwatch import Stopwatch
from rehearsal.interviews.store import BadInterview, Event, Store
from rehearsal.interviews.turns import in_turn

Mode = Literal["real", "study"]


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
        self._store = store
        self._turn = threading.RLock()
        self.tell: Callable[[str], None] = print  # what takes so long, or was broken off
        self._script: Script = script_of(self.seed, self.minutes, store.setting)
        self._record = Record(store)
        # While nothing ran, nothing passed.
        spent = max(store.clock(), self._record.last)
        self._watch = Stopwatch(store, clock, spent=spent, most=60 * self.minutes)
        self._on_call = OnCall(
            store.folder / "incident", self.seed, track=store.setting, waits=is_simulated
        )
        self._second = SecondOpinion(self._opinion, waits=is_simulated)
        self._graders = Graders(self._record, self.seed, waits=is_simulated)
        self._ending = Ending(
            Parts(store, self._record, self._watch, self._graders, self._second, self._on_call),
            self.minutes,
            self._turn,
            lambda text: self.tell(text),
        )

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
        return self._watch.seconds / 60

    @property
    def box(self) -> Box:
        """The part of the interview that the clock is in."""
        return box_at(self.minute, self.minutes)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._record.is_over

    @property
    def is_ending(self) -> bool:
        """Whether the graders finish with it right now."""
        return self._ending.is_going_on

    @property
    def is_paused(self) -> bool:
        """Whether the clock stands still."""
        return not self._watch.is_running

    @property
    def is_open(self) -> bool:
        """Whether this process holds it: it hasn't ended, and wasn't let go of."""
        return self._store.is_taken

    @property
    def incident(self) -> Any:
        """The incident, once the pager has gone off: look(), diagnose(), fix(). Else None."""
        return self._on_call.case if self._state.incident_at is not None else None

    def next(self) -> str | None:
        """What the interviewer says now; None to go on. Ask again until there is nothing."""
        line = self._next_line()
        if line is not None and line.kind == "end":
            self.end(why="time")
        return line.text if line is not None else None

    @in_turn
    def _next_line(self) -> Line | None:
        if self.is_paused or self.is_over:
            return None
        self._watch.tick()
        state = self._state
        if self.minute >= 0.5 * self.minutes:
            self._on_call.prepare(state.facts)
        line = next_line(
            self._script, state, self.minute, is_diagnosed=self._on_call.is_diagnosed
        )
        if line is None:
            return None
        if line.kind == "end" and state.lines[-1]["kind"] == "end":
            return line  # said before an interrupt
        if line.kind in ("alert", "evidence"):
            filled = self._on_call.fill(line, state.unseen)
            if filled is None:
                return None  # the job still runs
            line = filled
        self._say_line(line)
        return line

    @in_turn
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
            last = state.asked[-1]
            self._add("opinion asked", card=last.card.id)
            self._second.hear(last.card, last.answer)

    @in_turn
    def type(self, source: str, *, cell: str | None = None) -> None:
        """Type a cell. Judged in the background, with the cells before it.

        A name that a later cell defines again replaces the earlier one, as in a notebook.

        Args:
            cell: which one it is, for an editor that knows. Typed again, it replaces what it
                was, unless the new text doesn't parse.

        Raises:
            BadInterview: if the interview is over or paused, or it isn't text with code in it.
        """
        self._must_run("type")
        if not isinstance(source, str):
            raise BadInterview(
                f"type() got {type(source).__name__}, not the text of a cell, so nothing was "
                "kept. Pass the source as a string."
            )
        if not has_code(source):
            raise BadInterview(
                "There is no code in what was typed, so nothing was kept. Hand it in once "
                "there is."
            )
        name = self._record.add_cell(source)
        self._add("type", file=name, problem=why_unparsable(source), cell=cell)
        self._graders.judge(name, self._watch.seconds)

    def has_typed(self, cell: str) -> bool:
        """Whether something that was typed in this cell counts."""
        return cell in self._state.file_of

    @in_turn
    def take_back(self, cell: str) -> None:
        """What was typed in a cell isn't there anymore. The rest is judged anew.

        Raises:
            BadInterview: if the interview is over or paused, or nothing of it counts.
        """
        self._must_run("take_back")
        file = self._state.file_of.get(cell)
        if file is None:
            raise BadInterview(
                f"Nothing of the cell {cell!r} counts, so nothing was taken back. It has to be "
                "one that type(..., cell=...) named."
            )
        self._add("take back", file=file, cell=cell)
        self._graders.judge(file, self._watch.seconds)

    @in_turn
    def pause(self) -> None:
        """Stop the clock until ``resume``.

        Raises:
            BadInterview: if it is over.
        """
        if self.is_over:
            raise BadInterview(f"The interview {self.name} is over, so there is no clock.")
        if not self.is_paused:
            self._add("pause")
            self._watch.stop()

    @in_turn
    def resume(self) -> None:
        """Let the clock run again."""
        if self.is_paused and not (self.is_over or self.is_ending):
            self._watch.start()
            self._add("resume")

    @in_turn
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
        self._add("hint")
        return hint_for(self._state, self.box)

    def end(self, *, why: str = "asked") -> None:
        """End it, now. What has been typed by now counts. Harmless if it is over.

        It waits for the graders. An interrupt until then leaves it paused, as does
        ``call_back`` from another thread.
        """
        self._ending.run(why)

    def call_back(self) -> None:
        """While the graders finish with it: don't end it. Harmless at any other time."""
        self._ending.call_back()

    @in_turn
    def close(self) -> None:
        """Let go of it without ending it, so that somebody else may continue it."""
        self._watch.stop()
        self._store.release()

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
        return scorecard_of(self.name, self._state, self.minutes)

    def export(self, path: str | Path) -> Path:
        """Write the scorecard and the whole session as one HTML page.

        Raises:
            BadInterview: before the end, or if there is a file already, or it can't be written.
        """
        from rehearsal.interviews.export import write_page

        began = self._store.header()["began"]
        return write_page(
            self.scorecard(), self.events, self.cells, self.minutes, Path(path), began=began
        )

    @property
    def events(self) -> list[Event]:
        """All that happened, in order."""
        return list(self._record.events)

    @property
    def text(self) -> str:
        """All code that counts, as one text."""
        return self._state.text

    @property
    def cells(self) -> Mapping[str, str]:
        """The text of each cell, by the name that its event has."""
        return dict(self._record.cells)

    def __repr__(self) -> str:
        left = max(0.0, self.minutes - self.minute)
        state = "over" if self.is_over else "paused" if self.is_paused else self.box.name
        state = "being graded" if self.is_ending else state
        return f"Interview {self.name}: {state}, {left:.0f} of {self.minutes:g} minutes left."

    # ------------------------------------------------------------ inside

    @property
    def _state(self) -> State:
        return self._record.state

    def _add(self, did: str, **facts: Any) -> None:
        self._record.add(did, self._watch.seconds, **facts)

    def _say_line(self, line: Line) -> None:
        self._add("line", text=line.text, kind=line.kind, **line.facts)

    def _must_run(self, call: str) -> None:
        nothing = f"so {call}() changes nothing."
        if self.is_over:
            why = f"is over, {nothing} scorecard() shows how it went."
        elif self.is_ending:
            why = f"is being graded, {nothing}"
        elif self.is_paused:
            why = "is paused. resume() continues it."
        else:
            return
        raise BadInterview(f"The interview {self.name} {why}")

    def _opinion(self, found: dict[str, Any]) -> None:
        if not self.is_over:
            self._add("opinion", **found)

"""The interviewer's side: mark a recorded interview, then see what the evidence says.

reading = rehearsal.interviewer("middling")
reading.step()                                   the next exchange; .transcript is all of it
reading.form                                     the rows, and what earns each
reading.mark("commits", 2, because="no number until I asked")
reading.compare()                                once every row has a mark
"""

from __future__ import annotations

import difflib
import json
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from rehearsal.interviews.form_compared import Compared
from rehearsal.interviews.recorded import Recorded, recorded
from rehearsal.interviews.replay import WIDE, head_of, lines_of
from rehearsal.interviews.rubric import MARKS, ROWS, RUBRIC
from rehearsal.interviews.scorecard import Scorecard
from rehearsal.interviews.store import FORMAT, BadInterview
from rehearsal.interviews.transcript import Moment, moments_of
from rehearsal.session.progress import home


class Form(str):
    """The form as text; what a notebook shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Interviewer:
    """A recorded interview, and the form that its reader fills in."""

    def __init__(self, session: Recorded) -> None:
        # Refuses one that hasn't ended, before anybody has read it for half an hour.
        self._card: Scorecard = session.scorecard()
        self.name = session.name
        self._head = head_of(session)
        self._moments = moments_of(session.events, session.cells, session.minutes)
        self._read = 0
        self._marks: dict[str, tuple[int, str]] = {}
        self._compared: Compared | None = None

    @property
    def transcript(self) -> Form:
        """All of it, without the marks."""
        lines = [line for one in self._moments for line in lines_of(one, "candidate")]
        return Form("\n".join([self._head, *lines]))

    def step(self) -> Form | None:
        """The next exchange: something the interviewer says, and what follows; None at the
        end. The name of a part of the interview is no exchange of its own."""
        if self.is_read:
            return None
        first = self._read
        while not self.is_read and self._moments[self._read].kind == "box":
            self._read += 1
        self._read += 1
        while not self.is_read and not self._begins_an_exchange(self._moments[self._read]):
            self._read += 1
        part = self._moments[first : self._read]
        return Form("\n".join(line for one in part for line in lines_of(one, "candidate")))

    def _begins_an_exchange(self, moment: Moment) -> bool:
        return moment.who == "interviewer" or moment.kind == "box"

    @property
    def so_far(self) -> Form:
        """What the steps have shown until now."""
        part = self._moments[: self._read]
        return Form("\n".join(line for one in part for line in lines_of(one, "candidate")))

    @property
    def is_read(self) -> bool:
        """Whether the steps have shown all of it."""
        return self._read >= len(self._moments)

    @property
    def form(self) -> Form:
        """The rows, what earns each, and your marks so far."""
        lines = ["Marks: " + ", ".join(f"{n} {word}" for n, word in MARKS.items()), ""]
        for row in RUBRIC:
            mark, because = self._marks.get(row.id, (0, ""))
            first, rest = f"{row.id:<14}{mark or '-'}  ", " " * 17
            earns = f"{row.name}: {row.earns}"
            lines += textwrap.wrap(earns, WIDE, initial_indent=first, subsequent_indent=rest)
            lines += textwrap.wrap(because, WIDE, initial_indent=rest, subsequent_indent=rest)
        return Form("\n".join(lines))

    @property
    def marks(self) -> Mapping[str, tuple[int, str]]:
        """Row to your mark and your reason, as far as there are any."""
        return dict(self._marks)

    @property
    def compared(self) -> Compared | None:
        """The comparison, once there was one."""
        return self._compared

    @property
    def unmarked(self) -> list[str]:
        """The rows without a mark."""
        return [row.id for row in RUBRIC if row.id not in self._marks]

    def mark(self, row: str, mark: int, *, because: str = "") -> None:
        """Mark a row; again, to change your mind.

        Args:
            row: its id, or any prefix that only one has.
            mark: 1 to 4.
            because: what you saw or heard; a minute helps.

        Raises:
            BadInterview: if there is no such row or mark, or you've seen the evidence.
        """
        if self._compared is not None:
            raise BadInterview(
                "You've seen the evidence, so this form is closed. "
                f'rehearsal.interviewer("{self.name}") begins a new one.'
            )
        name = row_named(row)
        if type(mark) is not int or mark not in MARKS:
            raise BadInterview(
                f"mark={mark!r} for {name}: must be {', '.join(map(str, MARKS))}. "
                f"{MARKS[1]} is 1, {MARKS[4]} is 4. The form is as it was."
            )
        self._marks[name] = (mark, str(because).strip())

    def compare(self) -> Compared:
        """Your marks next to the evidence's. Closes the form, and keeps it.

        Raises:
            BadInterview: if a row has no mark yet.
        """
        if self._compared is not None:
            return self._compared
        if missing := self.unmarked:
            raise BadInterview(
                f"{len(missing)} rows have no mark yet: {', '.join(missing)}. Mark them first: "
                "the evidence would change what you think."
            )
        marks = {row.id: self._marks[row.id] for row in RUBRIC}
        self._compared = Compared(self.name, marks, self._card, keep(self.name, marks))
        return self._compared

    def __repr__(self) -> str:
        left = f"{len(self.unmarked)} of {len(RUBRIC)} rows to mark"
        return (
            f"{self._head}\nYou're the interviewer: {left}. step() shows the next exchange, "
            "transcript all of it. form shows the rows; "
            'mark("commits", 2, because="...") marks one; compare() shows the evidence.'
        )


def interviewer(transcript: str = "middling") -> Interviewer:
    """Be the interviewer of a recorded interview: read it, mark it, compare with the evidence.

    Args:
        transcript: weak, middling or strong; or one of your own, by name or any prefix that
            only one has.

    Raises:
        BadInterview: if there is none, it hasn't ended, or it can't be read.
    """
    return Interviewer(recorded(transcript))


def row_named(text: str) -> str:
    """The row with this id, or with any prefix that only one id has.

    Raises:
        BadInterview: if there is none, naming the nearest.
    """
    found = [name for name in ROWS if text and name.startswith(str(text))]
    if text in ROWS or len(found) == 1:
        return text if text in ROWS else found[0]
    names = {row.name: row.id for row in RUBRIC} | {row.id: row.id for row in RUBRIC}
    near = difflib.get_close_matches(str(text), names, n=1, cutoff=0.5)
    hint = f"Did you mean {names[near[0]]}?" if near else f"There are: {', '.join(ROWS)}."
    raise BadInterview(f"There is no row {text!r}, so nothing was marked. {hint}")


def keep(name: str, marks: Mapping[str, tuple[int, str]]) -> Path | str:
    """Write the filled form to a new file; the file, or why it couldn't be written."""
    folder = home() / "interview_forms"
    rows = {row: {"mark": mark, "because": why} for row, (mark, why) in marks.items()}
    text = json.dumps(
        {"format": FORMAT, "transcript": name, "filled": time.time(), "rows": rows}, indent=1
    )
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)  # what you type is private
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                with (folder / f"{name}-{number}.json").open("x", encoding="utf-8") as file:
                    file.write(text)
                return folder / f"{name}-{number}.json"
            except FileExistsError:  # an earlier go
                number += 1
    except OSError as error:
        return f"The form couldn't be kept ({error}). What's shown here is the only copy."

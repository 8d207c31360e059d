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
from dataclasses import dataclass
from pathlib import Path

from rehearsal.deck.words import words_of
from rehearsal.interviews.recorded import Recorded, recorded
from rehearsal.interviews.replay import WIDE, head_of, lines_of
from rehearsal.interviews.rubric import MARKS, ROWS, RUBRIC
from rehearsal.interviews.scorecard import Evidence, Mark, Scorecard, percent_of
from rehearsal.interviews.store import FORMAT, BadInterview
from rehearsal.interviews.transcript import moments_of, stamp_of
from rehearsal.session.progress import home

SHARED_WORDS = 2  # with a piece of evidence, to count as mentioning it
# Of words that tell nothing apart.
SHORTEST = 4  # letters


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
        end."""
        if self._read >= len(self._moments):
            return None
        first = self._read
        self._read += 1
        while (
            self._read < len(self._moments)
            and self._moments[self._read].who != "interviewer"
            and self._moments[self._read].kind != "box"
        ):
            self._read += 1
        part = self._moments[first : self._read]
        return Form("\n".join(line for one in part for line in lines_of(one, "candidate")))

    @property
    def form(self) -> Form:
        """The rows, what earns each, and your marks so far."""
        lines = ["Marks: " + ", ".join(f"{n} {word}" for n, word in MARKS.items()), ""]
        for row in RUBRIC:
            mark, because = self._marks.get(row.id, (0, ""))
            lines.append(f"{row.id:<14}{mark or '-'}  {row.name}: {row.earns}")
            lines += [f"{'':<17}{line}" for line in textwrap.wrap(because, WIDE - 17)]
        return Form("\n".join(lines))

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


def decision_of(marks: Mapping[str, int]) -> int:
    """The hire, 1 to 4: the weighted mean of the marks. A core that is wrong caps it at 2."""
    mean = 1 + 3 * percent_of(marks) / 100
    return min(int(mean + 0.5), 2 if marks["builds"] == 1 else 4)


def keep(name: str, marks: Mapping[str, tuple[int, str]]) -> Path | str:
    """Write the filled form to a new file; the file, or why it couldn't be written."""
    folder = home() / "interview_forms"
    rows = {row: {"mark": mark, "because": why} for row, (mark, why) in marks.items()}
    text = json.dumps(
        {"format": FORMAT, "transcript": name, "filled": time.time(), "rows": rows}, indent=1
    )
    try:
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


@dataclass(frozen=True)
class Compared:
    """A filled form next to the evidence.

    Args:
        marks: yours, each with its reason.
        kept: where the form is, or why it isn't.
    """

    name: str
    marks: Mapping[str, tuple[int, str]]
    card: Scorecard
    kept: Path | str

    @property
    def differences(self) -> dict[str, int]:
        """Row to your mark less the evidence's: above 0, you were kinder."""
        return {row: mark - self.card.marks[row] for row, (mark, _) in self.marks.items()}

    def missed(self, row: str) -> list[Evidence]:
        """The row's evidence that your reason doesn't mention."""
        because = self.marks[row][1]
        return [one for one in self._row(row).evidence if not mentions(because, one)]

    def _row(self, row: str) -> Mark:
        return next(one for one in self.card.rows if one.row == row)

    def __str__(self) -> str:
        lines = [f"{'':<34}yours  evidence  difference"]
        for row, difference in self.differences.items():
            how = _how(difference)
            lines.append(
                f"{ROWS[row].name:<34}{self.marks[row][0]:>5}{self.card.marks[row]:>10}"
                f"{f'{difference:+}' if difference else '0':>12}  {how}".rstrip()
            )
        mine = {row: mark for row, (mark, _) in self.marks.items()}
        lines.append(f"{'of 100':<34}{percent_of(mine):>5}{self.card.percent:>10}")
        lines += ["", *self._decisions(mine), ""]
        for row in self.marks:
            lines += [*self._evidence(row), ""]
        lines.append(f"Kept: {self.kept}" if isinstance(self.kept, Path) else self.kept)
        return "\n".join(lines)

    __repr__ = __str__

    def _decisions(self, mine: Mapping[str, int]) -> list[str]:
        yours, theirs = decision_of(mine), decision_of(self.card.marks)
        kinder = [ROWS[row].name for row, n in self.differences.items() if n > 0]
        harsher = [ROWS[row].name for row, n in self.differences.items() if n < 0]
        says = f"By the evidence: {MARKS[theirs]}."
        same = "the same" if yours == theirs else "another decision"
        lines = [f"Hire, by your marks: {MARKS[yours]}. {says} That's {same}."]
        lines += [f"You were kinder in: {', '.join(kinder)}."] if kinder else []
        lines += [f"You were harsher in: {', '.join(harsher)}."] if harsher else []
        missed = sum(len(self.missed(row)) for row in self.marks)
        of = sum(len(row.evidence) for row in self.card.rows)
        lines.append(
            f"You didn't mention {missed} of {of} pieces of evidence; the rest has a *."
        )
        return [part for line in lines for part in textwrap.wrap(line, WIDE)]

    def _evidence(self, row: str) -> list[str]:
        mark, because = self.marks[row]
        lines = [f"{ROWS[row].name}: you {mark}, the evidence {self.card.marks[row]}"]
        said = f"You: {because}" if because else "You gave no reason."
        lines += textwrap.wrap(said, WIDE, initial_indent="  ", subsequent_indent="       ")
        missed = self.missed(row)
        for one in self._row(row).evidence:
            sign = "+" if one.helps else "-"
            seen = " " if one in missed else "*"
            first = f"  {seen} {sign} {stamp_of(60 * one.minute):>5}  "
            lines += textwrap.wrap(
                one.what, WIDE, initial_indent=first, subsequent_indent=" " * len(first)
            )
        return lines


def _how(difference: int) -> str:
    return "kinder" if difference > 0 else "harsher" if difference < 0 else ""


def mentions(because: str, one: Evidence) -> bool:
    """Whether a reason mentions a piece of evidence: by its minute, or by words they share."""
    minute = int(one.minute)
    said = [word.strip(".,;()") for word in because.split()]
    if f"{minute}" in said or any(word.startswith(f"{minute}:") for word in said):
        return True
    of_evidence = _stems(one.what)
    return len(of_evidence & _stems(because)) >= min(SHARED_WORDS, max(1, len(of_evidence)))


def _stems(text: str) -> set[str]:
    words = words_of(text, frozenset(), frozenset())
    return {word.stem for word in words if len(word.stem) >= SHORTEST}

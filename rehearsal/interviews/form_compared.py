"""A filled form next to the evidence: where they differ, and what wasn't noticed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rehearsal.deck.words import words_of
from rehearsal.interviews.replay import WIDE
from rehearsal.interviews.rubric import MARKS, ROWS
from rehearsal.interviews.scorecard import Evidence, Mark, Scorecard, percent_of
from rehearsal.interviews.transcript import stamp_of

SHARED_WORDS = 2  # with a piece of evidence, to count as mentioning it
# Of words that tell nothing apart.
SHORTEST = 4  # letters


def decision_of(marks: Mapping[str, int]) -> int:
    """The hire, 1 to 4: the weighted mean of the marks. A core that is wrong caps it at 2."""
    mean = 1 + 3 * percent_of(marks) / 100
    return min(int(mean + 0.5), 2 if marks["builds"] == 1 else 4)


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

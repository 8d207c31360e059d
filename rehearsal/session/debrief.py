"""After a timed run: where the minutes went, compared with the budget, and what was found.

A row is one round of a drill. The text here and the picture (``debrief_picture.py``) are made
from the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import NamedTuple

from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import SHOWN, counted
from rehearsal.session.clock import pace
from rehearsal.session.history import Round

RUN_PAUSE_S = 3600.0  # after an idle hour, the next round belongs to another run
MOST_ROWS = 12


class Try(NamedTuple):
    """One attempt."""

    at_s: float  # since the round began
    status: str
    code: str
    found: str


class Row(NamedTuple):
    """One bar of the picture, and one line of the text."""

    label: str
    budget_s: float
    used_s: float
    tries: Sequence[Try]
    hints_s: Sequence[float]
    ending: str  # passed, gave up, or the last verdict

    @property
    def over_s(self) -> float:
        """Seconds beyond the budget."""
        return max(0.0, self.used_s - self.budget_s)


def run_of(rounds: Sequence[Round]) -> list[Round]:
    """The newest timed run: rounds with no long pause between them."""
    timed = [one for one in rounds if one.is_timed and one.of("attempt")]
    first = 0
    for place, (before, after) in enumerate(pairwise(timed), 1):
        if after.began - before.entries[-1].at > RUN_PAUSE_S:
            first = place
    return timed[first:][-MOST_ROWS:]


def row_of(one: Round, drill: Drill, label: str) -> Row:
    """One round, up to its first pass."""
    until = [entry for entry in one.entries if entry.at <= one.until]
    tries = [
        Try(
            entry.at - one.began,
            entry.status,
            *(entry.findings[0][:2] if entry.findings else ("", "")),
        )
        for entry in until
        if entry.kind == "attempt"
    ]
    ending = SHOWN[tries[-1].status].lower() if tries else "nothing checked"
    return Row(
        label=label,
        budget_s=60 * drill.minutes,
        used_s=one.until - one.began,
        tries=tries,
        hints_s=[entry.at - one.began for entry in until if entry.kind == "hint"],
        ending="gave up" if one.gave_up else ending,
    )


def rows_of_run(rounds: Sequence[Round], drills: Mapping[str, Drill]) -> list[Row]:
    """One row per round of the newest run, in the order in which they began."""
    run = [one for one in run_of(rounds) if one.drill in drills]
    return [row_of(one, drills[one.drill], one.drill) for one in run]


def rows_of_drill(rounds: Sequence[Round], drill: Drill) -> list[Row]:
    """One row per timed round of one drill: is it getting faster?"""
    timed = [one for one in rounds if one.is_timed and one.of("attempt")]
    numbered = list(enumerate(timed, 1))[-MOST_ROWS:]
    return [row_of(one, drill, f"{drill.id}, start {number}") for number, one in numbered]


def as_text(rows: Sequence[Row]) -> str:
    """The debriefing as text."""
    used, budget = sum(row.used_s for row in rows), sum(row.budget_s for row in rows)
    width = max(len(row.label) for row in rows)
    lines = [f"debrief   {pace(used, budget / 60)} for {counted(len(rows), 'round')}"]
    for row in rows:
        facts = [pace(row.used_s, row.budget_s / 60), counted(len(row.tries), "attempt")]
        facts += [counted(len(row.hints_s), "hint")] if row.hints_s else []
        lines.append(f"  {row.label:<{width}}   {row.ending:<8}   {', '.join(facts)}")
        failed = Counter((t.code, t.found) for t in row.tries if t.status != "passed")
        for (code, found), count in failed.items():
            times = f" ({count} times)" if count > 1 else ""
            # Wrapped here, because JupyterLab would break a long line inside a word.
            lines += wrap(
                f"{code}{times}: {found}", 84, initial_indent=" " * 4, subsequent_indent=" " * 6
            )
    worst = max(rows, key=lambda row: row.over_s)
    if worst.over_s >= 1:
        lines.append(f"  furthest over budget: {worst.label}")
    codes = Counter(t.code for row in rows for t in row.tries if t.status != "passed")
    if codes and (most := codes.most_common(1)[0])[1] > 1:
        lines.append(f"  most common: {most[0]}, {most[1]} times")
    return "\n".join(lines)

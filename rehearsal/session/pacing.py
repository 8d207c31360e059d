"""After a timed run: where the minutes went, against the budget, and what was found.

Rows are drills, or the rounds of one drill; a row is drawn and said from the same facts.
Colours are Okabe and Ito's, and a hatch, a marker or a word says the same as each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from rehearsal.grading.drill import Drill
from rehearsal.session.frontend import pace
from rehearsal.session.progress import Round
from rehearsal.grading.verdict import SHOWN, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN_PAUSE_S = 3600.0  # after an hour of nothing, what comes is another run
MOST_ROWS = 12


class Try(NamedTuple):
    """One attempt of a row."""

    at_s: float  # since the row's start
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
    """The newest timed run: the rounds before its last that no long pause parts from it."""
    timed = [one for one in rounds if one.is_timed and one.of("attempt")]
    first = 0
    for place, (before, after) in enumerate(pairwise(timed), 1):
        if after.began - before.entries[-1].at > RUN_PAUSE_S:
            first = place
    return timed[first:][-MOST_ROWS:]


def row_of(one: Round, drill: Drill, label: str) -> Row:
    """What a round comes to, up to its first pass."""
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
    """The debriefing as a terminal shows it."""
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
            # JupyterLab would break a long line in the middle of a word.
            lines += wrap(
                f"{code}{times}: {found}", 84, initial_indent=" " * 4, subsequent_indent=" " * 6
            )
    worst = max(rows, key=lambda row: row.over_s)
    if worst.over_s >= 1:
        lines.append(f"  most over its budget: {worst.label}")
    codes = Counter(t.code for row in rows for t in row.tries if t.status != "passed")
    if codes and (most := codes.most_common(1)[0])[1] > 1:
        lines.append(f"  met most often: {most[0]}, {most[1]} times")
    return "\n".join(lines)


def picture(rows: Sequence[Row]) -> Figure:
    """The debriefing as bars over minutes, with attempts and hints where they fell."""
    from rehearsal.evidence.pictures import BLACK, BLUE, ORANGE, PURPLE, VERMILLION, new_figure

    used, budget = sum(row.used_s for row in rows), sum(row.budget_s for row in rows)
    figure, axes = new_figure(
        2.0 + 0.55 * len(rows),
        f"Pace: {pace(used, budget / 60)} (minutes:seconds)",
        "a bar is the time from start to pass, or to the last attempt",
    )
    for place, row in enumerate(rows):
        within = min(row.used_s, row.budget_s) / 60
        axes.barh(place, within, 0.5, color=BLUE, alpha=0.55, edgecolor=BLACK)
        if row.over_s:
            over = row.over_s / 60
            axes.barh(place, over, 0.5, within, color=ORANGE, hatch="///", edgecolor=BLACK)
        axes.plot([row.budget_s / 60] * 2, [place - 0.42, place + 0.42], color=BLACK, lw=2.5)
        for one in row.tries:
            passed = one.status == "passed"
            style = ("o", BLUE) if passed else ("X", VERMILLION)
            axes.plot(one.at_s / 60, place, style[0], color=style[1], mec="white", ms=10)
        axes.plot(
            [at / 60 for at in row.hints_s],
            [place] * len(row.hints_s),
            "v",
            color=PURPLE,
            mec="white",
            ms=9,
        )
        last = next((t.code for t in reversed(row.tries) if t.status != "passed"), "")
        why = f": {last}" if last and row.ending != "passed" else ""
        right = max(row.used_s, row.budget_s) / 60
        axes.annotate(
            f"{row.ending}{why}",
            (right, place),
            (8, 0),
            va="center",
            textcoords="offset points",
            fontsize=9.5,
        )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first on top
    longest = max(max(row.used_s, row.budget_s) for row in rows) / 60
    axes.set_xlim(0, longest * 1.35)  # room for the words on the right
    axes.set_xlabel("minutes since the start")
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from rehearsal.evidence.pictures import BLACK, BLUE, ORANGE, PURPLE, VERMILLION

    def marker(shape: str, colour: str, label: str) -> Line2D:
        return Line2D([], [], color=colour, marker=shape, ls="", ms=9, mec="white", label=label)

    handles = [
        Patch(facecolor=BLUE, alpha=0.55, edgecolor=BLACK, label="within the budget"),
        Patch(facecolor=ORANGE, hatch="///", edgecolor=BLACK, label="over it"),
        Line2D([], [], color=BLACK, lw=2.5, label="the budget"),
        marker("o", BLUE, "passed"),
        marker("X", VERMILLION, "not yet"),
        marker("v", PURPLE, "hint"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=9)

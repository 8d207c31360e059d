"""The debriefing as bars over minutes, with attempts and hints where they happened.

The colors are Okabe and Ito's, and a hatch, a marker or a word repeats what each one says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rehearsal.session.clock import pace
from rehearsal.session.debrief import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(rows: Sequence[Row]) -> Figure:
    """Draw the rows."""
    from rehearsal.evidence.pictures import BLUE, INK, ORANGE, PURPLE, VERMILLION
    from rehearsal.evidence.pictures import new_figure, on_any_theme

    used, budget = sum(row.used_s for row in rows), sum(row.budget_s for row in rows)
    figure, axes = new_figure(
        2.0 + 0.55 * len(rows),
        f"Time used: {pace(used, budget / 60)}",
        "each bar runs from start to pass, or else to the last check, hint or solution",
    )
    for place, row in enumerate(rows):
        within = min(row.used_s, row.budget_s) / 60
        axes.barh(place, within, 0.5, color=BLUE, alpha=0.55, edgecolor=INK)
        if row.over_s:
            over = row.over_s / 60
            axes.barh(place, over, 0.5, within, color=ORANGE, hatch="///", edgecolor=INK)
        axes.plot([row.budget_s / 60] * 2, [place - 0.42, place + 0.42], color=INK, lw=2.5)
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
    return on_any_theme(figure)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from rehearsal.evidence.pictures import BLUE, INK, ORANGE, PURPLE, VERMILLION

    def marker(shape: str, color: str, label: str) -> Line2D:
        return Line2D([], [], color=color, marker=shape, ls="", ms=9, mec="white", label=label)

    handles = [
        Patch(facecolor=BLUE, alpha=0.55, edgecolor=INK, label="within budget"),
        Patch(facecolor=ORANGE, hatch="///", edgecolor=INK, label="over budget"),
        Line2D([], [], color=INK, lw=2.5, label="budget"),
        marker("o", BLUE, "passed"),
        marker("X", VERMILLION, "not yet"),
        marker("v", PURPLE, "hint"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=9)

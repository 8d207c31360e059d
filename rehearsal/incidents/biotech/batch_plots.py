"""Pictures of what batches held, of the plates, and of the symmetries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rehearsal.evidence.pictures import BLUE, FAINT, ORANGE, RANK_MARKERS, VERMILLION
from rehearsal.evidence.pictures import new_figure, rank_color
from rehearsal.incidents.biotech.plots import finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
ROUNDING = {"bf16": 2**-8, "float32": 2**-24}  # half a unit in the last place, relative


def tokens(rows: Rows) -> Figure:
    """Tokens of each rank's batches, by step; where a rank was killed, a cross."""
    figure, axes = new_figure(
        3.4, "Batches", "Tokens with padding; a larger marker has a longer row."
    )
    longest = max(row["longest"] for row in rows)
    for rank in sorted({row["rank"] for row in rows}):
        of = [row for row in rows if row["rank"] == rank]
        axes.scatter(
            [row["step"] for row in of], [row["tokens"] for row in of],
            s=[12 + 90 * row["longest"] / longest for row in of],
            color=rank_color(rank), marker=RANK_MARKERS[rank % 7], label=f"rank {rank}",
        )  # fmt: skip
    killed = [row for row in rows if row["killed"]]
    if killed:
        axes.plot(
            [row["step"] for row in killed], [row["tokens"] for row in killed], "x",
            color=VERMILLION, markersize=14, markeredgewidth=2.5, label="killed here",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens")
    return finished(figure, axes, "step")


def plates(rows: Rows) -> Figure:
    """Share of actives of each plate, as read and as expected."""
    figure, axes = new_figure(
        1.6 + 0.24 * len(rows), "Plates", "Share of actives among the labels of each plate."
    )
    places = range(len(rows))
    axes.set_yticks(places, [f"plate {row['plate']}" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for place, row in zip(places, rows, strict=True):
        axes.plot([row["actives"], row["expected"]], [place, place], **FAINT)
    for name, label, color, marker in (
        ("actives", "as read", BLUE, "o"),
        ("expected", "expected by the model", ORANGE, "D"),
    ):
        axes.plot(
            [row[name] for row in rows], places, marker, color=color, label=label
        )  # fmt: skip
    axes.set_xlim(0, 1)
    return finished(figure, axes, "share of actives")


def symmetry(found: Mapping[str, Mapping[str, float]], motions: Sequence[str]) -> Figure:
    """The error of each symmetry on a logarithmic axis, with what formats round to."""
    figure, axes = new_figure(
        2.8,
        "Symmetries",
        "Dotted: what a format rounds a number by. An error of 0 is drawn at 1e-9.",
    )
    places = range(len(motions))
    axes.set_yticks(places, motions)
    axes.set_ylim(len(motions) - 0.5, -0.5)
    for place in places:
        axes.axhline(place, **FAINT)
    for format_, rounding in ROUNDING.items():
        axes.axvline(rounding, color=VERMILLION, linestyle=":")
        axes.text(rounding, -0.45, f" {format_}", color=VERMILLION, va="top", fontsize=9)
    for what, color, marker in (("energies", BLUE, "o"), ("vectors", ORANGE, "D")):
        errors = [max(found[what][motion], 1e-9) for motion in motions]  # 0 has no logarithm
        axes.plot(errors, places, marker, color=color, label=what)
    axes.set_xscale("log")
    axes.set_xlim(5e-10, 1)
    return finished(figure, axes, "relative error")

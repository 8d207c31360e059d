"""Chapter 31's pictures: where a database's residues are, and what rounding does to space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def shares_by_length(lengths: Sequence[int], power: int, edges: Numbers) -> Numbers:
    """Which share of sequences (power 0), residues (1) or pairs (2) is in each range."""
    each = np.asarray(lengths, dtype=np.float64)
    counted, _ = np.histogram(each, edges, weights=each**power)
    shares: Numbers = counted / (each**power).sum()
    return shares


def lengths_picture(lengths: Sequence[int], crop: int) -> Figure:
    """One distribution, counted by sequence, by residue, and by pair of residues."""
    subtitle = "The same sequences, weighted by 1, by length, and by length squared."
    figure, axes = new_figure(3.8, "Where a database's proteins are, and its work", subtitle)
    edges = np.geomspace(11, 35_000, 41)
    middles = np.sqrt(edges[1:] * edges[:-1])
    looks: tuple[tuple[str, Style], ...] = (
        ("sequences", {"color": BLUE, "marker": "o"}),
        ("residues: memory, matrices", {"color": GREEN, "marker": "s", "linestyle": "--"}),
        ("pairs: attention", {"color": VERMILLION, "marker": "D", "linestyle": "-."}),
    )  # fmt: skip
    for power, (name, look) in enumerate(looks):
        shares = 100 * shares_by_length(lengths, power, edges)
        shown = shares > 0
        axes.plot(middles[shown], shares[shown], markersize=4, label=name, **look)
    axes.axvline(crop, color=INK, linewidth=1.2, linestyle=":")
    where: Style = {"textcoords": "offset points", "fontsize": 9, "ha": "left"}
    top = axes.get_ylim()[1]
    axes.annotate(f"crop: {crop:,}", (crop, top), (5, -10), **where)
    axes.set(xscale="log", xlabel="residues", ylabel="share of the total, %", ylim=(0, top))
    ticks = (11, 30, 100, 300, 1000, 3000, 10_000, 35_000)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="upper left")
    return on_any_theme(figure)


def symmetry_picture(errors: Mapping[str, float], tolerance: float) -> Figure:
    """The error under rotation, one bar for each precision; hatched above the tolerance."""
    subtitle = (
        "|f(Rx) - R f(x)| / |f(x)| of a small network's displacements, largest of 4 draws."
    )
    figure, axes = new_figure(3.4, "What rounding does to a rotation", subtitle)
    for row, error in enumerate(errors.values()):
        breaks = error > tolerance
        look: Style = {
            "color": VERMILLION if breaks else BLUE,
            "hatch": "///" if breaks else "",
        }
        axes.barh(row, error, 0.7, edgecolor="white", linewidth=0, **look)
        axes.annotate(f"{error:.0e}", (error, row), (4, 0), va="center", fontsize=9,
                      textcoords="offset points")  # fmt: skip
    axes.axvline(tolerance, color=INK, linewidth=1.2, linestyle="--")
    axes.set_yticks(range(len(errors)), list(errors))
    axes.set(xscale="log", xlim=(1e-17, 3), ylim=(len(errors) - 0.4, -0.6))
    axes.set_xlabel(f"relative error; dashed: a tolerance of {tolerance:.0e}")
    return on_any_theme(figure)

"""Where a run's time went, as a picture: one bar per attempt, along the wall time.

The question it answers: "what did each kill cost, and where else did the time go?"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rehearsal.evidence.goodput import KINDS, Account, Kind, Span
from rehearsal.evidence.pictures import (
    BLUE,
    DARK,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
)
from rehearsal.evidence.pictures import Style, new_figure, on_any_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 500  # slices of the wall time; in each, a color's height is its share of the time
BARS_TO_DRAW = 40
# Name, color and hatch of each kind: no two kinds differ in color alone.
LOOKS: dict[Kind, tuple[str, str, str]] = {
    "useful": ("useful steps", BLUE, ""),
    "replayed": ("lost steps", VERMILLION, "xxx"),
    "data_wait": ("waiting for data", ORANGE, "///"),
    "start_up": ("startup", SKY, "..."),
    "checkpoint": ("checkpoint stalls", PURPLE, "ooo"),
    "logging": ("logging", GREEN, "\\\\\\"),
    "hang": ("hang", DARK, "***"),
    "down": ("down", "none", "---"),
    "unknown": ("unknown", PALE, "+++"),
}
EDGES: dict[Kind, str] = {"down": INK, "unknown": "black"}  # of the hatch, if not white
UNITS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def format_account(account: Account) -> list[str]:
    """One line per kind: seconds, and percent of the wall time."""
    return [
        f"{LOOKS[kind][0]:18}{seconds:8.1f} s {100 * account.fractions[kind]:6.1f}%"
        for kind, seconds in account.seconds.items()
    ]


# %%
def shares(spans: list[Span], wall_us: int) -> dict[Kind, NDArray[np.float64]]:
    """Each kind's share of each column of the wall time; arrays of (COLUMNS,) in 0..1."""
    edges = np.linspace(0, wall_us, COLUMNS + 1)
    found: dict[Kind, NDArray[np.float64]] = {}
    for kind in KINDS:
        pieces = np.array([x[1:3] for x in spans if x.kind == kind], dtype=np.float64)
        if len(pieces):
            # Time of this kind elapsed at each edge; the rise across a column is its share.
            ends = np.cumsum(pieces[:, 1] - pieces[:, 0])
            at = np.stack([pieces[:, 0], pieces[:, 1]], axis=1).ravel()
            passed = np.stack([ends - (pieces[:, 1] - pieces[:, 0]), ends], axis=1).ravel()
            found[kind] = np.diff(np.interp(edges, at, passed)) / (wall_us / COLUMNS)
    return found


def draw_bar(axes: Axes, y: float, spans: list[Span], wall_us: int, unit_s: float) -> None:
    """Draw one attempt: in each column, the colors stacked in proportion to their shares."""
    edges = np.linspace(0, wall_us / 1e6 / unit_s, COLUMNS + 1)
    parts = shares(spans, wall_us)
    low = np.zeros(COLUMNS)
    for kind, part in parts.items():
        _, color, hatch = LOOKS[kind]
        high = low + part
        look: Style = {"facecolor": color, "hatch": hatch, "linewidth": 0.0}
        look["edgecolor"] = EDGES.get(kind, "white")
        top, bottom = y + 0.4 - 0.8 * high, y + 0.4 - 0.8 * low
        axes.stairs(top, edges, baseline=bottom, fill=True, **look)
        low = high


# %%
def goodput_picture(account: Account) -> Figure:
    """Where a run's wall time went: one bar per attempt, with the totals in the legend.

    Raises:
        ValueError: if no time has passed.
    """
    from matplotlib.patches import Patch

    if not account.spans:
        raise ValueError("the run lasted 0 s: there is nothing to draw")
    unit = next((u for u, size in UNITS.items() if account.wall_s >= 3 * size), "seconds")
    goodput = "unknown" if account.goodput is None else f"{100 * account.goodput:.1f}%"
    subtitle = f"{account.wall_s:.1f} s from the first start to the last sign of life; "
    subtitle += f"goodput {goodput} (useful steps and their waits / attempts' run time)\n"
    subtitle += "One bar per attempt, with the downtime after it. The height of a color is its "
    subtitle += f"share of each {account.wall_s / COLUMNS:.2g} s slice."
    attempts: dict[int, list[Span]] = {}
    for span in account.spans:
        attempts.setdefault(max(0, span.attempt), []).append(span)
    shown = list(attempts)[:BARS_TO_DRAW]
    if len(shown) < len(attempts):
        subtitle += f" Showing the first {len(shown)} of {len(attempts)} attempts."
    height_in = 2.9 + min(0.75, 12 / len(shown)) * len(shown)
    figure, axes = new_figure(height_in, "Where the time went", subtitle)
    wall_us = account.spans[-1].end_us
    for y, attempt in enumerate(shown):
        draw_bar(axes, y, attempts[attempt], wall_us, UNITS[unit])
    axes.set_yticks(range(len(shown)), [f"attempt {attempt}" for attempt in shown])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, wall_us / 1e6 / UNITS[unit]), ylim=(len(shown) - 0.5, -0.5))
    axes.set_xlabel(f"{unit} since the first start")
    patches = []
    for kind in KINDS:
        name, color, hatch = LOOKS[kind]
        total = f"{account.seconds[kind]:.1f} s, {100 * account.fractions[kind]:.1f}%"
        edge = EDGES.get(kind, "white")
        look: Style = {"facecolor": color, "hatch": hatch, "edgecolor": edge}
        patches.append(Patch(label=f"{name}: {total}", linewidth=0.5, **look))
    place: Style = {"loc": "outside lower left", "ncols": 4, "frameon": False, "fontsize": 9}
    figure.legend(handles=patches, handlelength=2.5, handleheight=1.2, **place)
    return on_any_theme(figure)

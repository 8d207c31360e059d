"""A training step as the row of collectives that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rehearsal.evidence.pictures import BLUE, GREEN, INK, ORANGE, on_any_theme
from rehearsal.handbook.group_calls import Call

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {
    "all_reduce": (BLUE, ""),
    "all_gather": (GREEN, "///"),
    "reduce_scatter": (ORANGE, "xxx"),
}


class Step(NamedTuple):
    """What one rank asked for in one step, in order."""

    calls: Sequence[Call]
    sends: Sequence[float]  # bytes that the rank sends for each call
    in_forward: int  # how many of the calls belong to the forward pass


def step_pictures(steps: Mapping[str, Step]) -> Figure:
    """One row per step, one bar per collective; a line ends the forward pass."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, grid = plt.subplots(
        len(steps), figsize=(10, 0.9 + 1.6 * len(steps)), dpi=100, layout="constrained",
        sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    top = max(max(step.sends) for step in steps.values()) / 1e3
    for axes, (name, step) in zip(grid[:, 0], steps.items(), strict=True):
        for at, (call, sends) in enumerate(zip(step.calls, step.sends, strict=True)):
            color, hatch = LOOKS[call["name"]]
            axes.bar(at + 1, sends / 1e3, color=color, hatch=hatch, edgecolor="white", lw=0.5)
            if sends / 1e3 < 0.05 * top:  # too flat to see
                place = {"ha": "center", "va": "bottom", "fontsize": 8}
                axes.text(at + 1, 0.02 * top, f"{sends / 1e3:.0f} kB", **place)
        axes.axvline(step.in_forward + 0.5, color=INK, linewidth=1)
        where = {"textcoords": "offset points", "fontsize": 9, "va": "top", "color": INK}
        edge = (step.in_forward + 0.5, 1.25 * top)
        axes.annotate("backward", edge, (5, 0), **where)
        if step.in_forward:
            axes.annotate("forward", edge, (-5, 0), ha="right", **where)
        total = f"{sum(step.sends) / 1e3:,.0f} kB"
        axes.set_title(f"{name}: sends {total}", loc="left", fontsize=11, fontweight="bold")
        axes.set(ylabel="kB sent", ylim=(0, 1.3 * top))
        axes.spines[["top", "right"]].set_visible(False)
    most = max(len(step.calls) for step in steps.values())
    grid[-1, 0].set(xlabel="collectives of one step, in order", xlim=(0, most + 1))
    grid[-1, 0].set_xticks(range(1, most + 1))
    used = {call["name"] for step in steps.values() for call in step.calls}
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white")
        for name, (color, hatch) in LOOKS.items()
        if name in used
    ]
    names = [name for name in LOOKS if name in used]
    figure.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return on_any_theme(figure)

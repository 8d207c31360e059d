"""Where the wall time of several runs went, one bar per run, below each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rehearsal.evidence.goodput import KINDS, Account, Kind
from rehearsal.evidence.pictures import (
    DARK,
    GREEN,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    new_figure,
    on_any_theme,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS: dict[Kind, tuple[str, str, str]] = {  # what it is, color, hatch
    "useful": ("steps that are in the weights", GREEN, ""),
    "replayed": ("steps lost in a kill", VERMILLION, "xxx"),
    "data_wait": ("waiting for data", YELLOW, ""),
    "checkpoint": ("saving", PURPLE, "ooo"),
    "start_up": ("starting and restoring", ORANGE, "///"),
    "down": ("dead, until the next start", DARK, ""),
    "logging": ("ledger and logs", SKY, ""),
    "hang": ("hanging", VERMILLION, "..."),
    "unknown": ("not known", PALE, ""),
}


def account_bars(accounts: Mapping[str, Account], title: str) -> Figure:
    """A bar per run, with its seconds by kind."""
    figure, axes = new_figure(
        0.5 * len(accounts) + 1.9,
        title,
        "One bar per run: rank 0's wall time, by what it was spent on.",
    )
    left = dict.fromkeys(accounts, 0.0)
    for kind in sorted(KINDS, key=list(LOOKS).index):
        seconds = {name: account.seconds[kind] for name, account in accounts.items()}
        if max(seconds.values()) < 0.005 * max(a.wall_s for a in accounts.values()):
            continue  # too short to be seen
        label, color, hatch = LOOKS[kind]
        axes.barh(
            list(seconds),
            list(seconds.values()),
            0.6,
            list(left.values()),
            label=label,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
        )
        left = {name: left[name] + seconds[name] for name in accounts}
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds, all attempts together")
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return on_any_theme(figure)

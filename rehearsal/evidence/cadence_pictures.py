"""Goodput vs. checkpoint interval, and where the rules of thumb break down.

The questions they answer: "what does it cost to save twice as often?", "at what failure rate
does Young's formula go wrong?" The letters are those of rehearsal/evidence/cadence.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rehearsal.evidence.cadence import (
    Costs,
    best_interval,
    best_steps,
    daly_interval,
    expected_goodput,
    first_order_goodput,
    young_interval,
)
from rehearsal.evidence.cadence_simulation import Stragglers, enough_failures, simulate_job
from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TICKS_S = [
    *(m * 10.0**e for e in range(-9, 2) for m in (1, 3)),
    *(60, 180, 600, 1800, 3600, 10_800, 36_000),
    *(m * 86_400 * 10.0**e for e in range(8) for m in (1, 3)),
]


def format_seconds(seconds: float) -> str:
    """A duration of any size, in the unit that keeps it short."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def draw_simulated(
    axes: Axes,
    x: float,
    interval_s: float,
    costs: Costs,
    rng: np.random.Generator,
    stragglers: Stragglers | None = None,
) -> None:
    """Draw one simulated job as a point with an error bar of two standard errors."""
    count = enough_failures(interval_s, costs)
    job = simulate_job(interval_s, costs, rng, num_failures=count, stragglers=stragglers)
    style: Style = {"fmt": "o", "color": INK, "markersize": 5, "capsize": 4, "zorder": 3}
    axes.errorbar(x, 100 * job.goodput, 200 * job.standard_error, **style)


def label_simulated(axes: Axes) -> None:
    """Add the legend entry for all simulated points."""
    name = "simulated, +- 2 standard errors"
    axes.errorbar([], [], [], fmt="o", color=INK, markersize=5, capsize=4, label=name)


def interval_picture(
    costs: Costs, *, step_s: float | None = None, stragglers: Stragglers | None = None
) -> Figure:
    """Goodput vs. interval: formula as a line, simulated jobs as points, the best marked."""
    slowdown = stragglers.mean_slowdown() if stragglers else 1.0
    best_s = best_interval(costs, slowdown)
    best = expected_goodput(best_s, costs, slowdown)
    subtitle = f"A save stalls the job for {format_seconds(costs.save_s)}"
    if costs.publish_s:
        subtitle += f" and is usable {format_seconds(costs.publish_s)} later"
    subtitle += f", a restart takes {format_seconds(costs.restart_s)}, "
    subtitle += f"and something fails every {format_seconds(costs.mtbf_s)}."
    if stragglers:
        subtitle += f"\n{stragglers.ranks:,} ranks whose step times vary by "
        subtitle += f"{100 * stragglers.spread:g}%: the slowest rank makes every step "
        subtitle += f"{100 * (slowdown - 1):.1f}% longer."
    title = "Goodput vs. checkpoint interval"
    figure, axes = new_figure(5.2, title, subtitle)
    grid = np.geomspace(best_s / 16, best_s * 16, 400)
    if stragglers:
        without = [100 * expected_goodput(s, costs) for s in grid]
        axes.plot(grid, without, "--", color=ORANGE, linewidth=2, label="without stragglers")
    name = "formula, with stragglers" if stragglers else "formula"
    exact = [100 * expected_goodput(s, costs, slowdown) for s in grid]
    axes.plot(grid, exact, color=BLUE, linewidth=2.5, label=name)
    rng = np.random.default_rng(0)  # the same picture each time
    for interval_s in np.geomspace(best_s / 12, best_s * 12, 10):  # none under the best's mark
        draw_simulated(axes, interval_s, interval_s, costs, rng, stragglers)
    label_simulated(axes)
    text = f"best: {format_seconds(best_s)}, {100 * best:.1f}%"
    text += f"\n{best_steps(costs, step_s, slowdown)} steps" if step_s else ""
    mark: Style = {"marker": "D", "markersize": 10, "markeredgecolor": "white", "zorder": 4}
    axes.plot(best_s, 100 * best, color=VERMILLION, **mark)
    where: Style = {"textcoords": "offset points", "ha": "center", "fontweight": "bold"}
    axes.annotate(text, (best_s, 100 * best), (0, -40), color=VERMILLION, **where)
    axes.set_xscale("log")
    ticks = [tick for tick in TICKS_S if grid[0] <= tick <= grid[-1]]
    axes.set_xticks(ticks, [format_seconds(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="checkpoint interval (work between two saves)")
    axes.set_ylabel("goodput, % of wall time")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="lower center")
    return on_any_theme(figure)


def limits_picture(save_s: float, restart_s: float) -> Figure:
    """Where the rules of thumb break down: goodput vs. M relative to save plus restart time."""
    subtitle = f"A save stalls the job for {format_seconds(save_s)}, a restart takes "
    subtitle += f"{format_seconds(restart_s)}. Failures are more frequent toward the left."
    figure, axes = new_figure(5.2, "Where Young's formula goes wrong", subtitle)
    ratios = np.geomspace(0.5, 300, 200)
    lines: dict[str, list[float]] = {"best": [], "young": [], "daly": [], "guess": []}
    for ratio in ratios:
        costs = Costs(save_s=save_s, restart_s=restart_s, mtbf_s=ratio * (save_s + restart_s))
        young_s = young_interval(save_s, costs.mtbf_s)
        daly_s = daly_interval(save_s, costs.mtbf_s)
        lines["best"].append(expected_goodput(best_interval(costs), costs))
        lines["young"].append(expected_goodput(young_s, costs))
        lines["daly"].append(expected_goodput(daly_s, costs))
        lines["guess"].append(first_order_goodput(young_s, costs))
    looks: dict[str, tuple[str, Style]] = {
        "best": ("best interval", {"color": BLUE, "linewidth": 5, "alpha": 0.45}),
        "daly": ("Daly's interval", {"color": GREEN, "linestyle": "-", "linewidth": 1.5}),
        "young": ("Young's interval", {"color": ORANGE, "linestyle": "--", "linewidth": 2.5}),
        "guess": (
            "first-order estimate at Young's interval",
            {"color": VERMILLION, "linestyle": ":", "linewidth": 2.5},
        ),
    }
    for key, (name, style) in looks.items():
        axes.plot(ratios, [100 * value for value in lines[key]], label=name, **style)
    rng = np.random.default_rng(0)
    for ratio in np.geomspace(0.6, 250, 9):
        costs = Costs(save_s=save_s, restart_s=restart_s, mtbf_s=ratio * (save_s + restart_s))
        draw_simulated(axes, ratio, young_interval(save_s, costs.mtbf_s), costs, rng)
    label_simulated(axes)
    costs = Costs(save_s=save_s, restart_s=restart_s, mtbf_s=save_s + restart_s)
    best_s, young_s = best_interval(costs), young_interval(save_s, costs.mtbf_s)
    best, young = (100 * expected_goodput(s, costs) for s in (best_s, young_s))
    text = f"At 1, Young's interval is {100 * (young_s / best_s - 1):.0f}% too long,\n"
    text += f"yet goodput is {young:.1f}% instead of {best:.1f}%.\n"
    text += f"The first-order estimate says {100 * first_order_goodput(young_s, costs):.0f}%."
    where: Style = {
        "textcoords": "offset points",
        "arrowprops": {"arrowstyle": "-", "color": INK},
    }
    axes.annotate(text, (1, best), (-70, 95), fontsize=9, **where)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 3, 10, 30, 100, 300], ["0.5", "1", "3", "10", "30", "100", "300"])
    axes.minorticks_off()
    axes.set(ylim=(-20, 100), xlabel="mean time between failures / (save time + restart time)")
    axes.set_ylabel("goodput, % of wall time")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="lower right")
    return on_any_theme(figure)

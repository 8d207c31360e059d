"""What a metric is worth: the spread of its value over seeds, as numbers and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rehearsal.evidence.pictures import BLUE, INK, ORANGE, new_figure, on_any_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of a two-sided test at 5 %, with a power of 80 %: standard normal quantiles.
QUANTILES = 1.96 + 0.84


def seeds_needed(spread: float, difference: float) -> int:
    """Runs of each variant that show a true difference of that size, 8 times out of 10.

    The difference of two means over n seeds has a standard error of spread * sqrt(2 / n), and
    the difference has to be QUANTILES times that.

    Args:
        spread: standard deviation over seeds, of either variant.

    Raises:
        ValueError: if the difference is 0: no number of seeds shows it.
    """
    if difference == 0:
        raise ValueError("difference=0: no number of seeds shows a difference that isn't there")
    return math.ceil(2 * (QUANTILES * spread / difference) ** 2)


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean, by the normal approximation."""
    return 1.96 * stdev(values) / math.sqrt(len(values))


def spread_picture(results: Mapping[str, Sequence[float]], what: str) -> Figure:
    """A dot per seed, and the mean with its interval, for each variant.

    Args:
        what: the metric, with its unit.
    """
    title = "One run is one draw"
    subtitle = "Circles: one seed each. Square and line: the mean and its 95 % interval."
    figure, axes = new_figure(1.3 + 0.55 * len(results), title, subtitle)
    for row, (values, color) in enumerate(zip(results.values(), (BLUE, ORANGE), strict=False)):
        dots = {"facecolors": "none", "edgecolors": color, "linewidths": 1.8}
        axes.scatter(values, [row + 0.12] * len(values), 60, **dots)  # type: ignore[arg-type]
        mean, half = fmean(values), half_interval(values)
        axes.plot([mean - half, mean + half], [row - 0.2] * 2, color=color, linewidth=3)
        axes.plot(mean, row - 0.2, "s", color=color, markersize=9, markeredgecolor=INK)
    axes.set_yticks(range(len(results)), list(results))
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel=what, ylim=(len(results) - 0.4, -0.6))
    return on_any_theme(figure)

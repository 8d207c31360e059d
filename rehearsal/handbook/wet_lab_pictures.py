"""What chapter 33 draws: a plate, campaigns round by round, and a generator's progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from rehearsal.evidence.pictures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILLION
from rehearsal.evidence.pictures import Style, new_figure, on_any_theme
from rehearsal.handbook.assay_plates import SHAPE, Correction, Plate, corrected

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Floats = NDArray[np.float64]
Look = tuple[str, str, str]  # color, line, marker
LOOKS = (
    *((BLUE, "-", "o"), (VERMILLION, "--", "s"), (GREEN, "-.", "D"), (ORANGE, ":", "^")),
    (PURPLE, "-", "v"),
)


def plate_maps(plate: Plate, activity: Floats, ways: Mapping[str, Correction]) -> Figure:
    """What is wrong in each well of one plate, a map for each correction.

    Args:
        activity: the true one of each compound.
        ways: title -> correction.
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(ways), figsize=(10, 2.9), dpi=100, layout="constrained")
    plt.close(figure)
    title = "What is wrong in each well of one plate"
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    rows, columns = np.indices(SHAPE).reshape(2, -1)
    is_control = ~np.isnan(plate.control)
    ring: Style = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.2}
    errors = {name: errors_of(plate, activity, how) for name, how in ways.items()}
    largest = max(float(np.abs(error).max()) for error in errors.values())
    for axes, (name, error) in zip(np.atleast_1d(every), errors.items(), strict=True):
        limits: Style = {"cmap": "PuOr", "vmin": -largest, "vmax": largest}
        image = axes.imshow(error.reshape(SHAPE), **limits)
        axes.scatter(columns[is_control], rows[is_control], 40, **ring)
        axes.set_title(f"{name}: off by {np.sqrt((error**2).mean()):.1f}", fontsize=9.5)
        axes.set_xticks(range(12), [str(column + 1) for column in range(12)], fontsize=7)
        axes.set_yticks(range(8), "ABCDEFGH", fontsize=7)
        axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=every, shrink=0.75, pad=0.01)
    bar.set_label("error, % of positive control", fontsize=8)
    return on_any_theme(figure)


def errors_of(plate: Plate, activity: Floats, how: Correction) -> Floats:
    """What a correction leaves wrong in each well, controls included, in percent."""
    true = np.nan_to_num(plate.control)
    filled = plate.compound >= 0
    true[filled] = activity[plate.compound[filled]]
    return np.asarray(corrected(plate, how) - true)


def with_looks(results: Mapping[str, T]) -> Iterator[tuple[tuple[str, T], Look]]:
    """Each result with its color, line and marker. Raises ValueError if there are too many."""
    if len(results) > len(LOOKS):
        raise ValueError(f"{len(results)} results, and {len(LOOKS)} colors. Draw two pictures.")
    return zip(results.items(), LOOKS, strict=False)


def round_curves(
    results: Mapping[str, Sequence[Sequence[float]]], title: str, ylabel: str
) -> Figure:
    """A line for each kind of campaign: the median over worlds, and bars from least to most.

    Args:
        results: name -> a row for each world, with a value for each round.
    """
    subtitle = "line: median over the simulated worlds; bar: from the worst to the best of them"
    figure, axes = new_figure(3.8, title, subtitle)
    for at, ((name, rows), look) in enumerate(with_looks(results)):
        values, (color, line, marker) = np.array(rows), look
        # Side by side: bars on top of each other can't be told apart.
        rounds = np.arange(1, values.shape[1] + 1) + 0.09 * (at - (len(results) - 1) / 2)
        middle = np.median(values, axis=0)
        bars = np.stack([middle - values.min(axis=0), values.max(axis=0) - middle])
        style: Style = {"color": color, "linestyle": line, "marker": marker, "markersize": 5}
        axes.errorbar(rounds, middle, bars, label=name, elinewidth=1, **style)
    axes.set(xlabel="round", ylabel=ylabel)
    axes.set_xticks(range(1, values.shape[1] + 1))
    axes.grid(**FAINT)
    figure.legend(loc="outside lower center", ncols=len(results), frameon=False, fontsize=9)
    return on_any_theme(figure)


def oracle_picture(
    runs: Mapping[str, Sequence[tuple[float, float]]], hit_from: float
) -> Figure:
    """Predicted and true activity, generation by generation, for each way to search.

    Args:
        runs: name -> (predicted, true) mean activity of each generation, in percent.
        hit_from: the activity from which a molecule is a hit.
    """
    figure, axes = new_figure(
        3.8,
        "The score rises, the molecules don't",
        "mean of each generation; solid: what the model says; dashed: what was planted",
    )
    for (name, pairs), (color, _, marker) in with_looks(runs):
        generations = range(len(pairs))
        look: Style = {"color": color, "marker": marker, "markersize": 5}
        axes.plot(generations, [pair[0] for pair in pairs], "-", label=name, **look)
        axes.plot(generations, [pair[1] for pair in pairs], "--", **look)
    axes.axhline(hit_from, color=INK, linewidth=1, linestyle=":")
    where: Style = {"textcoords": "offset points", "fontsize": 9}
    axes.annotate("a hit, from here up", (0, hit_from), (2, -12), **where)
    axes.set(xlabel="generation", ylabel="activity, % of the positive control")
    axes.grid(**FAINT)
    figure.legend(loc="outside lower center", ncols=len(runs), frameon=False, fontsize=9)
    return on_any_theme(figure)

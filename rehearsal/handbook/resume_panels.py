"""What a resume did to a run: six measures, each next to those of the uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence.pictures import FAINT, INK, SKY, VERMILLION, on_any_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = Mapping[str, Any]  # rank, step, samples, mask, and one number per measure
Series = dict[int, float]  # by step


def of_rank(lines: Iterable[Line], key: str, rank: int = 0) -> dict[int, Any]:
    """One entry of a rank's records, by step."""
    return {line["step"]: line[key] for line in lines if line["rank"] == rank}


def masks_in_common(lines: list[Line], others: list[Line], rank: int, of: int) -> Series:
    """The share of a rank's dropout mask, in %, that equals that of rank ``of`` elsewhere.

    Args:
        lines: their ``mask`` has a row of 0 and 1 per sample.
    """
    theirs = of_rank(others, "mask", of)
    return {
        step: percent_equal(mask, theirs[step])
        for step, mask in of_rank(lines, "mask", rank).items()
    }


def percent_equal(mask: list[list[int]], other: list[list[int]]) -> float:
    """How much of two masks of the same shape is the same."""
    pairs = [
        (a, b)
        for row, others in zip(mask, other, strict=True)
        for a, b in zip(row, others, strict=True)
    ]
    return 100 * sum(a == b for a, b in pairs) / len(pairs)


def samples_in_common(lines: list[Line], others: list[Line]) -> Series:
    """How many samples a step shares with the same step of another run."""
    steps: dict[int, tuple[set[int], set[int]]] = {}
    for at, run in enumerate((lines, others)):
        for line in run:
            steps.setdefault(line["step"], (set(), set()))[at].update(line["samples"])
    return {step: len(ours & theirs) for step, (ours, theirs) in sorted(steps.items())}


class Panel(NamedTuple):
    """One measure of one run."""

    piece: str  # the state that the resume lacked
    label: str  # of the y-axis, with the unit
    measure: Callable[[list[Line], list[Line]], Series]  # of a run, next to the right one
    is_log: bool = False


def plain(key: str) -> Callable[[list[Line], list[Line]], Series]:
    """The measure that is an entry of rank 0's records."""
    return lambda lines, _: of_rank(lines, key)


PANELS = (
    Panel("optimizer", "update norm", plain("update")),
    Panel("scheduler", "learning rate", plain("lr")),
    Panel("scaler", "loss scale", plain("scale"), is_log=True),
    Panel("sampler", "position (epochs)", plain("position")),
    Panel(
        "rng", "same dropout mask (%)", lambda lines, right: masks_in_common(lines, right, 0, 0)
    ),
    Panel("identity", "same samples (of 8)", samples_in_common),
)


def draw(axes: Axes, panel: Panel, broken: list[Line], right: list[Line], after: int) -> None:
    """One panel: the uninterrupted run wide, the resumed one on top."""
    expected, found = (panel.measure(lines, right) for lines in (right, broken))
    axes.plot(*series(expected), color=SKY, linewidth=4, alpha=0.75, label="uninterrupted")
    axes.plot(*series(found), color=VERMILLION, linewidth=1.5, label="resumed without it")
    axes.axvline(after + 0.5, color=INK, linewidth=0.8, linestyle="--")
    axes.set_title(f"without: {panel.piece}", loc="left", fontsize=10, fontweight="bold")
    axes.set_ylabel(panel.label, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(**FAINT)
    if panel.is_log:
        axes.set_yscale("log", base=2)
    else:
        axes.set_ylim(0, 1.08 * max(*expected.values(), *found.values()))


def series(values: Series) -> tuple[list[int], list[float]]:
    """Steps and values, for plot."""
    return list(values), list(values.values())


def six_panels(right: list[Line], broken: Mapping[str, list[Line]], after: int) -> Figure:
    """One panel for each piece of state that a resume lacked.

    Args:
        broken: the piece that was missing -> the records of the whole run.
        after: the last step before the kill.
    """
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        2, 3, figsize=(10, 5.4), dpi=100, layout="constrained", sharex=True
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for axes, panel in zip(grid.flat, PANELS, strict=True):
        draw(axes, panel, broken[panel.piece], right, after)
    for axes in grid[1]:
        axes.set_xlabel("optimizer step (dashed: kill and resume)", fontsize=9)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return on_any_theme(figure)

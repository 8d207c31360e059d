"""Which rank trained on which sample in which step, and what the loss showed at the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence.pictures import INK, VERMILLION, on_any_theme, rank_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = Mapping[str, Any]  # rank, epoch, step, samples, loss_sum (over these samples)


class EpochCount(NamedTuple):
    """What one epoch trained on."""

    epoch: int
    steps: int
    missed: list[int]  # samples without a visit
    repeated: dict[int, int]  # visits of the samples that had more than one

    def __str__(self) -> str:
        repeats = f", {len(self.repeated)} trained on more than once" if self.repeated else ""
        missed = f", {len(self.missed)} missed" if self.missed else ""
        verdict = f"{missed}{repeats}" or ", each sample trained on once"
        return f"epoch {self.epoch}: {self.steps} steps{verdict}"


def count_epochs(lines: Iterable[Line], num_samples: int) -> list[EpochCount]:
    """Misses and repeats, epoch by epoch, from what the ranks recorded."""
    visits: dict[int, Counter[int]] = {}
    steps: dict[int, set[int]] = {}
    for line in lines:
        visits.setdefault(line["epoch"], Counter()).update(line["samples"])
        steps.setdefault(line["epoch"], set()).add(line["step"])
    return [
        EpochCount(
            epoch=epoch,
            steps=len(steps[epoch]),
            missed=[sample for sample in range(num_samples) if not seen[sample]],
            repeated={sample: count for sample, count in sorted(seen.items()) if count > 1},
        )
        for epoch, seen in sorted(visits.items())
    ]


def mean_losses(lines: Iterable[Line]) -> dict[int, float]:
    """The mean loss over each step's samples, by step: what a dashboard shows."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for line in lines:
        step = line["step"]
        sums[step] = sums.get(step, 0.0) + line["loss_sum"]
        counts[step] = counts.get(step, 0) + len(line["samples"])
    return {step: sums[step] / counts[step] for step in sorted(sums)}


def sample_maps(runs: Mapping[str, list[Line]], num_samples: int) -> Figure:
    """A map of each run, side by side, over its loss curve.

    A column is a step, a row is a sample, and a cell's color is the rank that trained on it. In
    an epoch that misses a sample, its row is crossed out; a cell that repeats one has a dot.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure = plt.figure(figsize=(10, 5), dpi=100, layout="constrained")
    grid = figure.subplots(2, len(runs), sharex="col", squeeze=False, height_ratios=[3, 1])
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    top = max(max(mean_losses(lines).values()) for lines in runs.values())
    for column, (name, lines) in enumerate(runs.items()):
        draw_map(grid[0, column], lines, num_samples)
        grid[0, column].set_title(name, loc="left", fontsize=11, fontweight="bold")
        losses = mean_losses(lines)
        grid[1, column].plot(list(losses), list(losses.values()), color=INK, linewidth=1.5)
        grid[1, column].set(ylim=(0, top * 1.05), xlabel="step (a line ends an epoch)")
        grid[1, column].xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[1, column].spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("sample")
    grid[1, 0].set_ylabel("loss (nats)")
    handles: dict[str, Any] = {}
    for axes in grid[0]:
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    look: dict[str, Any] = {"ncols": 6, "frameon": False, "fontsize": 9}
    figure.legend(list(handles.values()), list(handles), loc="outside lower left", **look)
    return on_any_theme(figure)


def draw_map(axes: Axes, lines: list[Line], num_samples: int) -> None:
    """The map of one run."""
    from matplotlib.patches import Rectangle

    seen: set[tuple[int, int]] = set()
    dots: list[tuple[float, float]] = []
    named: set[int] = set()
    for line in sorted(lines, key=lambda line: (line["step"], line["rank"])):
        rank, step = line["rank"], line["step"]
        for sample in line["samples"]:
            label = f"rank {rank}" if rank not in named else None
            named.add(rank)
            box = Rectangle(
                (step - 0.5, sample - 0.5), 1, 1, color=rank_color(rank), label=label
            )
            axes.add_patch(box)
            if (line["epoch"], sample) in seen:
                dots.append((step, sample))
            seen.add((line["epoch"], sample))
    for count in count_epochs(lines, num_samples):
        steps = [line["step"] for line in lines if line["epoch"] == count.epoch]
        first, last = min(steps) - 0.5, max(steps) + 0.5
        axes.axvline(last, color=INK, linewidth=0.8)
        for sample in count.missed:
            axes.plot([first, last], [sample, sample], color=VERMILLION, linewidth=1.3)
    if any(count.missed for count in count_epochs(lines, num_samples)):
        axes.plot([], [], color=VERMILLION, linewidth=1.3, label="missed in that epoch")
    if dots:
        dot: dict[str, Any] = {"markersize": 3, "markeredgecolor": "white"}
        axes.plot(*zip(*dots, strict=True), "o", color="black", label="repeated", **dot)
    last_step = max(line["step"] for line in lines)
    axes.set(xlim=(0.5, last_step + 0.5), ylim=(num_samples - 0.5, -0.5))
    axes.spines[["top", "right"]].set_visible(False)

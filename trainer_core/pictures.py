"""Pictures of a run, drawn from its run folder alone.

A collapsed cell. The questions they answer: "which rank trained which sample when, and what did
the kill cost?", "is the resumed run the same run?", "where does the time of a step go?"

Each function imports matplotlib itself and returns a Figure that a notebook shows once. Colours
are Okabe and Ito's, which colour-blind people can tell apart, and never the only cue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

# %% active="py"
from trainer_core.audit import AuditReport, LedgerLine, Steps, audit_run, read_jsonl, read_ledger, read_logs
from trainer_core.audit import RunPlan, read_plan, surviving_lineage, world_size_of

# %%
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, BLUE, ORANGE, GREEN = "#000000", "#0072B2", "#E69F00", "#009E73"
PURPLE, SKY, VERMILLION, YELLOW = "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"
RANK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
PHASE_STYLES = {
    "data_wait": (ORANGE, "///"), "h2d": (YELLOW, "..."), "forward": (SKY, ""),
    "backward": (BLUE, ""), "grad_sync": (VERMILLION, "xxx"), "optimizer": (GREEN, "---"),
    "checkpoint": (PURPLE, "ooo"), "other": ("#DDDDDD", ""),
}  # fmt: skip


def new_figure(height_in: float, title: str, subtitle: str) -> tuple[Figure, Axes]:
    """A figure of 1000 pixels width with one axes; the subtitle says how to read it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, height_in), dpi=100, layout="constrained")
    plt.close(figure)  # a notebook shows it as the value of its cell, and not once more
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    axes.set_title(subtitle, loc="left", fontsize=9.5, color="#444444")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rank_colour(rank: int) -> str:
    """Of the ranks beside each other, none has the same colour."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


# %%
CELLS_TO_DRAW = 20_000
COLUMNS_TO_DRAW = 700
LANE = 0.45  # height of a lane of lost work; the lineage's is 1


class MapFrame(NamedTuple):
    """What the parts of a sample map share."""

    axes: Axes
    plan: RunPlan
    end: int  # last step of the lineage
    last: int  # last step of all work
    width: int  # steps that a column stands for; the first of them is drawn
    has_cells: bool  # a cell for each sample; otherwise one for all samples of a line

    def note(self, text: str, x: float, y: float, dx: float, dy: float, **style: Any) -> None:
        """Write next to a point; ``dx`` and ``dy`` in points."""
        style = {"fontsize": 9, "annotation_clip": False} | style
        self.axes.annotate(text, (x, y), (dx, dy), textcoords="offset points", **style)


def share_bottom(rank: int, world_size: int, batch: int) -> float:
    """Where a rank's share begins in a column of height 1: above the ranks below it."""
    return (rank * (batch // world_size) + min(rank, batch % world_size)) / batch


def draw_lines(
    frame: MapFrame, lines: Iterable[LedgerLine], bottom: float, height: float, pale: float
) -> None:
    """Draw ledger lines above their steps, in ``pale`` colours (0: full, 1: white)."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    n, batch, corners, colours = frame.plan.num_samples, frame.plan.global_batch_size, [], []
    for line in lines:
        if (line.step - 1) % frame.width or not line.samples:
            continue
        left, right = line.step - 0.5, line.step - 0.5 + frame.width
        low = bottom + height * share_bottom(line.rank, line.world_size, batch)
        cells = [sample % n / n for sample in line.samples] if frame.has_cells else [0.3]
        cell = height / batch * len(line.samples) / len(cells)
        for at, shade in enumerate(cells):
            y0, y1 = low + at * cell, low + (at + 1) * cell
            corners.append([(left, y0), (right, y0), (right, y1), (left, y1)])
            depth = (1 - 0.55 * shade) * (1 - pale)
            colours.append([1 - depth * (1 - part) for part in to_rgb(rank_colour(line.rank))])
    # White gaps between cells, where they are high enough to spare them.
    has_gaps = frame.has_cells and height / batch > 0.012
    edges = {"edgecolors": "white" if has_gaps else "face", "linewidths": 0.5 * has_gaps}
    boxes = PolyCollection(corners, facecolors=colours, **edges)
    frame.axes.add_collection(boxes, autolim=False)


# %%
def draw_lineage(frame: MapFrame, lineage: Steps) -> None:
    """Draw what survived, with a bar and a name for each attempt's part of it."""
    draw_lines(frame, (line for lines in lineage.values() for line in lines), 0.0, 1.0, 0.0)
    parts: dict[int, list[int]] = {}
    for step in sorted(lineage):
        parts.setdefault(lineage[step][0].attempt, []).append(step)
    for attempt, steps in parts.items():
        ends = [steps[0] - 0.4, steps[-1] + 0.4]
        frame.axes.plot(ends, [1.05, 1.05], color=BLACK, linewidth=3, solid_capstyle="butt")
        room = len(steps) / frame.last
        name = f"attempt {attempt}" if room > 0.1 else f"{attempt}" if room > 0.02 else ""
        frame.note(name, ends[0], 1.05, 0, 4, fontweight="bold")


def draw_lost_work(frame: MapFrame, ledger: dict[int, Steps], lineage: Steps) -> int:
    """Draw above the lineage what kills have cost; returns the number of lanes it takes."""
    lost_steps = {
        attempt: [step for step, lines in steps.items() if lineage.get(step) is not lines]
        for attempt, steps in ledger.items()
    }
    lost_steps = {attempt: lost for attempt, lost in lost_steps.items() if lost}
    lane_ends: list[int] = []
    for attempt, lost in lost_steps.items():
        first, last = min(lost), max(lost)
        lane = next((lane for lane, end in enumerate(lane_ends) if end < first), len(lane_ends))
        lane_ends[lane : lane + 1] = [last + frame.last // 10]  # with room for the cross
        bottom = 1.3 + lane * (LANE + 0.25)
        lines = (line for step in lost for line in ledger[attempt][step])
        draw_lines(frame, lines, bottom, LANE, 0.55)
        left, right, top, middle = first - 0.5, last + 0.5, bottom + LANE, bottom + LANE / 2
        # Dashes lead down to the steps that were trained again.
        box = [left, left, right, right], [1.05, top, top, 1.05]
        frame.axes.plot(*box, color=VERMILLION, linestyle="--", linewidth=1.2, zorder=1)
        cross = {"marker": "X", "s": 150, "edgecolors": "white", "clip_on": False, "zorder": 5}
        frame.axes.scatter(right, middle, color=VERMILLION, **cross)
        style = {"color": VERMILLION, "fontweight": "bold"}
        if len(lost_steps) > 1:
            frame.note(f"{attempt}", left, top, 0, 3, **style)
            continue
        text = f"attempt {attempt} was killed at step {last}:\nthis work was lost"
        text += ", and done again" if last <= frame.end else ""
        if last < 0.6 * frame.last:
            frame.note(text, right, middle, 14, 0, va="center", **style)
        else:
            frame.note(text, left, middle, -8, 0, va="center", ha="right", **style)
    return len(lane_ends)


def draw_marks(frame: MapFrame, report: AuditReport, lineage: Steps) -> None:
    """Mark what the audit found. The legend counts it, also where there is none."""
    kinds = {"wrong_lines": ("^", "out of order"), "duplicates": ("D", "trained again"), "misses": ("x", "missed")}
    for kind, (marker, name) in kinds.items():
        steps, heights = [], []
        for step, rank, at in report.places.get(kind, []):
            low = share_bottom(rank, world_size_of(lineage.get(step, [])), frame.plan.global_batch_size)
            steps.append(step)
            heights.append(low + (at + 0.5) / frame.plan.global_batch_size)
        edge = {} if marker == "x" else {"edgecolors": "white"}
        label = f"{name}: {getattr(report, kind)}"
        frame.axes.scatter(steps, heights, 60, BLACK, marker, label=label, zorder=4, **edge)


def label_map(frame: MapFrame, lineage: Steps) -> None:
    """Name the ranks at both ends, for a world size may change, and the epochs."""
    axes, per_epoch, batch = frame.axes, frame.plan.steps_per_epoch, frame.plan.global_batch_size
    for step, side in ((min(lineage), axes), (max(lineage), axes.secondary_yaxis("right"))):
        world_size = world_size_of(lineage[step])
        borders = [share_bottom(rank, world_size, batch) for rank in range(world_size + 1)]
        named = range(0, world_size, -(-world_size // 16))
        middles = [(borders[rank] + borders[rank + 1]) / 2 for rank in named]
        side.set_yticks(middles, [f"rank {rank}" for rank in named])
        side.tick_params(axis="y", length=0)
        side.spines[["left", "right"]].set_visible(False)
    epochs = range(-(-frame.last // per_epoch))
    for epoch in epochs:
        first, end = epoch * per_epoch + 0.5, min((epoch + 1) * per_epoch, frame.last) + 0.5
        if epoch:
            line_width = 3 if frame.has_cells else 1
            axes.plot([first, first], [0, 1], color="white", linewidth=line_width)
        if epoch % -(-len(epochs) // 12) == 0:
            frame.note(f"epoch {epoch}", (first + end) / 2, 0, 0, -22, ha="center", va="top")
    axes.set_xlabel("optimizer step", labelpad=18)
    axes.xaxis.get_major_locator().set_params(integer=True)


# %%
def sample_map(run_dir: Path | str) -> Figure:
    """Which rank trained which sample at which step, the work that a kill cost, and any error.

    Raises:
        ValueError: if the folder has nothing to draw.
    """
    plan, ledger, report = read_plan(run_dir), read_ledger(run_dir), audit_run(run_dir)
    lineage, end, _ = surviving_lineage(ledger, read_logs(run_dir))
    last = max(end, *(max(steps) for steps in ledger.values()))
    width, has_cells = -(-last // COLUMNS_TO_DRAW), last * plan.global_batch_size <= CELLS_TO_DRAW
    how = "A column is an optimizer step, its colour the rank"
    how += ", a cell a sample: the same shade, the same sample." if has_cells else "."
    how += f" Drawn: every {width}th step, all findings." if width > 1 else ""
    subtitle = f"{report.status}: {report.verdict}\n{how}"
    figure, axes = new_figure(5.5, "Which rank trained which sample", subtitle)
    frame = MapFrame(axes, plan, end, last, width, has_cells)
    draw_lineage(frame, lineage)
    num_lanes = draw_lost_work(frame, ledger, lineage)
    draw_marks(frame, report, lineage)
    label_map(frame, lineage)
    axes.set(xlim=(0.5, last + 0.5), ylim=(0, 1.2 + num_lanes * (LANE + 0.25)))
    figure.set_figheight(4.2 + 1.2 * num_lanes)
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return figure

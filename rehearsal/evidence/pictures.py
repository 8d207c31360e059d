"""Pictures of a run, drawn from nothing but its run folder.

A collapsed cell. The questions they answer: "which rank trained which sample when, and what did
the kill cost?", "is the resumed run the same run?", "where does a step's time go?"

Each function imports matplotlib itself and returns a Figure that a notebook shows once. The
colors are Okabe and Ito's, which color-blind readers can tell apart, and never the only cue.
A figure can't know the theme of the page, so its background is transparent, and words and lines
are of a gray that is as legible on black as on white.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

# %% active="py"
from rehearsal.evidence.audit import AuditReport, audit_run
from rehearsal.evidence.lineage import surviving_lineage
from rehearsal.evidence.live_records import live_events, live_trace
from rehearsal.evidence.run_plan import RunPlan, read_plan
from rehearsal.evidence.run_records import (
    LedgerLine,
    Steps,
    rank_files,
    read_evidence,
    read_jsonl,
    world_size_of,
)

# %%
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = dict[str, Any]
Shift = tuple[float, float]

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
PURPLE, SKY, VERMILLION, YELLOW = "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"
INK = "#797979"  # contrast 4.4 on white and on JupyterLab's dark #111111
DARK, PALE = "#555555", "#BBBBBB"  # fills; a hatch distinguishes them
FAINT: Style = {"color": INK, "alpha": 0.35, "linewidth": 0.6}
RANK_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
RANK_MARKERS = ("o", "s", "D", "^", "v", "P", "<")  # 7 markers, 6 colors: 42 pairs
PHASE_STYLES = {
    "data_wait": (ORANGE, "///"),
    "h2d": (YELLOW, ""),  # short: any other color would be lost in its neighbors
    "forward": (SKY, ""),
    "backward": (BLUE, ""),
    "grad_sync": (VERMILLION, "xxx"),
    "optimizer": (GREEN, "---"),
    "checkpoint": (PURPLE, "ooo"),
    "log": (DARK, ""),
    "other": (PALE, ""),
}


def new_figure(height_in: float, title: str, subtitle: str) -> tuple[Figure, Axes]:
    """A figure 1000 pixels wide with one Axes; the subtitle says how to read it.

    ``on_any_theme`` has to come last.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, height_in), dpi=100, layout="constrained")
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    axes.set_title(subtitle, loc="left", fontsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def on_any_theme(figure: Figure) -> Figure:
    """Make the background transparent, and what would be black gray."""
    from matplotlib.axes import Axes
    from matplotlib.text import Text

    figure.set_facecolor("none")
    for axes in figure.findobj(Axes):
        assert isinstance(axes, Axes)
        axes.set_facecolor("none")
        axes.tick_params(which="both", color=INK, labelcolor=INK)  # of ticks yet to be made
        axes.spines[:].set_color(INK)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_color() in ("black", "k", "#000000"):
            text.set_color(INK)
    return figure


def rank_color(rank: int) -> str:
    """The color of a rank; neighboring ranks always differ."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


# %%
CELLS_TO_DRAW = 20_000
COLUMNS_TO_DRAW = 700
LANE = 0.45  # height of a lane of lost work; the lineage has height 1


class MapFrame(NamedTuple):
    """What all parts of a sample map need."""

    axes: Axes
    plan: RunPlan
    end: int  # last step of the lineage
    last: int  # last step of any attempt
    width: int  # steps that one column stands for; only the first of them is drawn
    has_cells: bool  # one cell per sample; otherwise one per ledger line

    def note(self, text: str, x: float, y: float, shift: Shift, **style: Any) -> None:
        """Write next to a point, shifted right and up by ``shift`` points."""
        where: Style = {"textcoords": "offset points", "fontsize": 9, "annotation_clip": False}
        self.axes.annotate(text, (x, y), shift, **where, **style)


def share_bottom(rank: int, world_size: int, batch: int) -> float:
    """Where a rank's share starts in a column of height 1, counted from the bottom."""
    return (rank * (batch // world_size) + min(rank, batch % world_size)) / batch


# %%
def draw_lines(
    frame: MapFrame, lines: Iterable[LedgerLine], bottom: float, height: float, pale: float
) -> None:
    """Draw ledger lines above their steps; ``pale`` fades the colors (0: full, 1: white)."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    n, batch, corners, colors = frame.plan.num_samples, frame.plan.global_batch_size, [], []
    # Gaps of a pixel or so between cells, if the cells are tall enough.
    has_gaps = frame.has_cells and height / batch > 0.02
    gap_x, gap_y = (frame.last / 1500, 0.004) if has_gaps else (0.0, 0.0)
    for line in lines:
        if (line.step - 1) % frame.width or not line.samples:
            continue
        left, right = line.step - 0.5, line.step - 0.5 + frame.width
        low = bottom + height * share_bottom(line.rank, line.world_size, batch)
        cells = [sample % n / n for sample in line.samples] if frame.has_cells else [0.3]
        cell = height / batch * len(line.samples) / len(cells)
        for at, shade in enumerate(cells):
            y0, y1 = low + at * cell, low + (at + 1) * cell
            box = [(left, y0), (right, y0), (right, y1), (left, y1)]
            corners.append([(x + gap_x * (x == left), y + gap_y * (y == y0)) for x, y in box])
            # The page shines through: on white it makes a color paler, on black darker.
            depth = (1 - 0.65 * shade) * (1 - pale)
            colors.append((*to_rgb(rank_color(line.rank)), depth))
    boxes = PolyCollection(corners, facecolors=colors, linewidths=0, antialiaseds=False)
    frame.axes.add_collection(boxes, autolim=False)


# %%
def draw_lineage(frame: MapFrame, lineage: Steps) -> None:
    """Draw what survived, with a labeled bar over each attempt's part of it."""
    draw_lines(frame, (line for lines in lineage.values() for line in lines), 0.0, 1.0, 0.0)
    parts: dict[int, list[int]] = {}
    for step in sorted(lineage):
        parts.setdefault(lineage[step][0].attempt, []).append(step)
    for attempt, steps in parts.items():
        start, end = steps[0] - 0.5, steps[-1] + 0.5
        frame.axes.plot([start, end], [1.05] * 2, color=INK, lw=3, solid_capstyle="butt")
        if start > 0.5:  # a tick between two attempts
            frame.axes.plot([start] * 2, [1.02, 1.08], color=INK, linewidth=2)
        room = len(steps) / frame.last
        name = f"attempt {attempt}" if room > 0.1 else f"{attempt}" if room > 0.02 else ""
        if name:
            frame.note(name, start, 1.05, (5, 6), fontweight="bold")


# %%
def draw_lost_work(frame: MapFrame, ledger: dict[int, Steps], lineage: Steps) -> int:
    """Draw the work that kills cost above the lineage; returns the number of lanes used."""
    lost_steps = {
        attempt: [step for step, lines in steps.items() if lineage.get(step) is not lines]
        for attempt, steps in ledger.items()
    }
    lost_steps = {attempt: lost for attempt, lost in lost_steps.items() if lost}
    lane_ends: list[int] = []
    label = "an attempt died; the framed work was redone"
    for attempt, lost in lost_steps.items():
        first, last = min(lost), max(lost)
        lane = next((lane for lane, end in enumerate(lane_ends) if end < first), len(lane_ends))
        lane_ends[lane : lane + 1] = [last + frame.last // 10]  # leaves room for the cross
        bottom = 1.3 + lane * (LANE + 0.25)
        lines = (line for step in lost for line in ledger[attempt][step])
        draw_lines(frame, lines, bottom, LANE, 0.55)
        left, right, top, middle = first - 0.5, last + 0.5, bottom + LANE, bottom + LANE / 2
        # Dashed lines lead down toward the steps that were trained again, not into the names.
        box = [left, left, right, right], [1.2, top, top, 1.2]
        frame.axes.plot(*box, color=VERMILLION, linestyle="--", linewidth=1.2, zorder=1)
        is_dead = last <= frame.end
        if is_dead:
            cross: Style = {"s": 150, "edgecolors": "white", "clip_on": False, "zorder": 5}
            frame.axes.scatter(
                right, middle, color=VERMILLION, marker="X", label=label, **cross
            )
            label = ""  # one entry in the legend
        style: Style = {"color": VERMILLION, "fontweight": "bold"}
        if len(lost_steps) > 1:  # no room for the full note
            frame.note(f"attempt {attempt}", left, top, (0, 3), **style)
            continue
        text = f"attempt {attempt} up to step {last}:\nlost, or still in flight"
        if is_dead:
            text = f"attempt {attempt} died at step {last}:\nthis work was lost and redone"
        if last < 0.6 * frame.last:
            frame.note(text, right, middle, (14, 0), va="center", **style)
        else:
            frame.note(text, left, middle, (-8, 0), va="center", ha="right", **style)
    return len(lane_ends)


# %%
def draw_marks(frame: MapFrame, report: AuditReport, lineage: Steps) -> None:
    """Mark what the audit found. The legend shows the counts, even if they are all 0."""
    batch = frame.plan.global_batch_size
    kinds = {"wrong_lines": ("^", "out of order"), "duplicates": ("D", "trained twice")}
    kinds |= {"misses": ("o", "missed")}  # hollow; a cross is where an attempt died
    for kind, (marker, name) in kinds.items():
        steps, heights = [], []
        for step, rank, at in report.places.get(kind, []):
            world_size = world_size_of(lineage.get(step, []))
            steps.append(step)
            heights.append(share_bottom(rank, world_size, batch) + (at + 0.5) / batch)
        look: Style = {
            "marker": marker,
            "zorder": 4,
            "facecolors": "black",  # with its white edge, visible on any color
            "edgecolors": "white",
        }
        if kind == "misses":
            look |= {"facecolors": "none", "edgecolors": INK, "linewidths": 1.8}
        frame.axes.scatter(steps, heights, 60, label=f"{name}: {getattr(report, kind)}", **look)


# %%
def label_map(frame: MapFrame, lineage: Steps) -> None:
    """Label the epochs, and the ranks at both ends, because the world size may change."""
    from matplotlib.ticker import MaxNLocator

    axes, plan = frame.axes, frame.plan
    per_epoch, batch = plan.steps_per_epoch, plan.global_batch_size
    for step, side in ((min(lineage), axes), (max(lineage), axes.secondary_yaxis("right"))):
        world_size = world_size_of(lineage[step])
        ranks = range(0, world_size, -(-world_size // 16))
        borders = [
            (share_bottom(r, world_size, batch), share_bottom(r + 1, world_size, batch))
            for r in ranks
        ]
        side.set_yticks([sum(pair) / 2 for pair in borders], [f"rank {rank}" for rank in ranks])
        side.tick_params(axis="y", length=0)
        side.spines[["left", "right"]].set_visible(False)
    num_epochs = -(-frame.last // per_epoch)
    for epoch in range(0, num_epochs, -(-num_epochs // 12)):
        first, end = epoch * per_epoch + 0.5, min((epoch + 1) * per_epoch, frame.last) + 0.5
        axes.plot([first, first], [-0.04, 1], color=INK, linewidth=1.2 if epoch else 0)
        frame.note(f"epoch {epoch}", (first + end) / 2, 0, (0, -22), ha="center", va="top")
    axes.set_xlabel("optimizer step", labelpad=18)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# %%
def sample_map(run_dir: Path | str) -> Figure:
    """Which rank trained which sample at which step, what kills cost, and what the audit found.

    Raises:
        ValueError: if the folder has nothing to draw.
    """
    report, (ledger, logs) = audit_run(run_dir), read_evidence(run_dir)
    plan, (lineage, end, *_) = read_plan(run_dir), surviving_lineage(ledger, logs)
    if not lineage:
        raise nothing_to_draw(run_dir, "lines of the surviving lineage in ledger/")
    last = min(plan.total_steps, max(end, *(max(steps) for steps in ledger.values())))
    width = -(-last // COLUMNS_TO_DRAW)
    has_cells = last * plan.global_batch_size <= CELLS_TO_DRAW
    how = "One column per optimizer step, one color per rank"
    how += ", one cell per sample: the fainter it is, the higher its id." if has_cells else "."
    how += f" Shown: 1 step in {width}, all findings." if width > 1 else ""
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
    return on_any_theme(figure)


# %%
def read_events(
    run_dir: Path | str, event: str, rank: int | None = None
) -> list[dict[str, Any]]:
    """The records of one event, from one rank's log or all; for live.py, from its ledger."""
    files = rank_files(run_dir, "logs")
    records = [
        *live_events(run_dir),
        *(record for file in files for record in read_jsonl(file)),
    ]
    usable = (record for record in records if {"rank", "attempt", "step"} <= record.keys())
    ours = (record for record in usable if rank is None or record["rank"] == rank)
    return [record for record in ours if record.get("event") == event]


def nothing_to_draw(run_dir: Path | str, missing: str) -> ValueError:
    """The error for a folder that lacks what the picture would show."""
    return ValueError(
        f"{run_dir} has no {missing}, so there is nothing to draw. Name the folder of a run "
        "that has trained a few steps."
    )


# %%
def loss_curves(runs: Mapping[str, Path | str]) -> Figure:
    """Loss per step of each run and attempt; later ones are drawn as thinner lines on top.

    Args:
        runs: label -> run folder. The subtitle gives the largest difference between runs.

    Raises:
        ValueError: if a run has logged no loss.
    """
    curves: list[tuple[str, dict[int, float], int | None]] = []
    survivors: list[dict[int, float]] = []
    for label, run_dir in runs.items():
        attempts: dict[int, dict[int, float]] = {}
        for record in read_events(run_dir, "train_progress", rank=0):
            loss = record.get("loss")
            losses = attempts.setdefault(record["attempt"], {})
            losses[record["step"]] = float("nan") if loss is None else loss
        if not attempts:
            raise nothing_to_draw(run_dir, "train_progress in logs/rank-0.jsonl")
        survivors.append({})
        restored = read_events(run_dir, "checkpoint_restored", rank=0)
        resumed_from = {record["attempt"]: record["step"] for record in restored}
        for attempt, losses in sorted(attempts.items()):
            name = f"{label}, attempt {attempt}" if len(attempts) > 1 else label
            start = resumed_from.get(attempt, 0) if attempt > min(attempts) else None
            curves.append((name, losses, start))
            survivors[-1] |= losses
    shared = sorted(set.intersection(*map(set, survivors)))
    values = np.array([[losses[step] for step in shared] for losses in survivors])
    subtitle = "Mean over the global batch."
    if len(runs) > 1 and shared:
        gap = float(np.ptp(values, axis=0).max())
        subtitle += f" Largest difference over {len(shared)} logged steps: {gap:.3g}"
        subtitle += " (every logged digit agrees)." if gap == 0 else "."

    figure, axes = new_figure(4.6, "Loss: " + " vs. ".join(runs), subtitle)
    colors, dashes = (SKY, ORANGE, INK, GREEN, PURPLE), ("-", "-", "--", "-.", ":")
    widths = np.linspace(9, 1.6, len(curves))
    num_restarts = 0
    for at, (name, losses, start) in enumerate(curves):
        style: Style = {
            "color": colors[at % 5],
            "linestyle": dashes[at % 5],
            "linewidth": widths[at],
        }
        axes.plot(list(losses), list(losses.values()), label=name, **style)
        if start is not None:
            text = f"{name}: resumes after step {start}" if start else f"{name}: starts over"
            dots: Style = {"color": VERMILLION, "linewidth": 1.5, "zorder": 1}
            axes.axvline(start, linestyle=(0, (1, 1 + 2 * num_restarts)), label=text, **dots)
            num_restarts += 1
    axes.set(xlabel="optimizer step", ylabel="cross-entropy loss (nats)")
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return on_any_theme(figure)


# %%
def phase_bars(run_dir: Path | str) -> Figure:
    """How long each phase of a step takes on each rank, from the rank's newest train_progress.

    For live.py, which has no such records, it covers all steps of the newest attempt.

    Nothing is added up: the sum of the phases' p95s isn't a percentile of anything.

    Raises:
        ValueError: if no rank has logged phases.
    """
    records = [x for x in read_events(run_dir, "train_progress") if x.get("phases")]
    last_attempt = max((record["attempt"] for record in records), default=0)
    newest = {x["rank"]: x for x in records if x["attempt"] == last_attempt}
    if not newest:
        raise nothing_to_draw(run_dir, "phases in logs/rank-*.jsonl or ledger/rank-*.jsonl")
    steps = ", ".join(sorted({f"{record['step']}" for record in newest.values()}))
    subtitle = f"From the log line at step {steps}."
    if counts := {record["num_steps"] for record in newest.values() if "num_steps" in record}:
        subtitle = f"Attempt {last_attempt}, {max(counts)} steps."
    subtitle += " Marker: p50, line: up to p95, tick: max."
    names = {name for record in newest.values() for name in record["phases"]}
    phases = [name for name in PHASE_STYLES if name in names]
    height_in = 1.8 + len(phases) * (0.2 + 0.13 * len(newest))
    figure, axes = new_figure(height_in, "Where a step's time goes", subtitle)
    # Logarithmic, so that a phase of 0.02 ms can be seen next to a save; linear down to 0.
    axes.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    gap = 0.8 / len(newest)
    for at, (rank, record) in enumerate(sorted(newest.items())):
        color, marker = rank_color(rank), RANK_MARKERS[rank % len(RANK_MARKERS)]
        for row, name in enumerate(phases):
            times = record["phases"].get(name)
            if times is None:
                continue
            y = row - 0.4 + (at + 0.5) * gap
            axes.plot([times["p50"], times["p95"]], [y, y], color=color, linewidth=3)
            axes.plot(times["max"], y, "|", color=color, markersize=10, markeredgewidth=2)
            axes.plot(times["p50"], y, marker, color=color, ms=7, clip_on=False, zorder=3)
        axes.plot([], [], marker, color=color, markersize=7, label=f"rank {rank}")
    for row in range(len(phases) - 1):
        axes.axhline(row + 0.5, **FAINT)
    axes.set_yticks(range(len(phases)), phases)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.set_ylim(len(phases) - 0.5, -0.5)
    longest_ms = max(x["max"] for record in newest.values() for x in record["phases"].values())
    ticks_ms = [0.0, *(10.0**power for power in range(-2, 9))]
    ticks_ms = [tick for tick in ticks_ms if tick <= max(1.0, 2 * longest_ms)]
    axes.set_xticks(ticks_ms, [f"{tick:,.10g}" for tick in ticks_ms])
    axes.set_xlim(0, max(1.0, 2 * longest_ms))
    axes.grid(axis="x", **FAINT)
    axes.set_xlabel("milliseconds per step (log scale; linear below 0.01)")
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return on_any_theme(figure)


# %%
def read_trace_events(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, even if a kill truncated it and left its array open."""
    text = path.read_text(encoding="utf-8", errors="replace")
    events, at = [], text.find("{")
    while at >= 0:
        try:
            event, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            event, at = {}, at + 1
        match event:
            case {"ph": "X", "ts": _, "dur": _, "args": {"step": int(), "attempt": int()}}:
                events.append(event)
        at = text.find("{", at)
    return events


# %%
def phase_style(name: str) -> dict[str, Any]:
    """Color and hatch of a phase. Without outlines, which would cover a narrow bar."""
    color, hatch = PHASE_STYLES.get(name, (DARK, ""))
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.0}


def rank_timeline(
    run_dir: Path | str, first_step: int | None = None, num_steps: int = 3
) -> Figure:
    """What each rank did when, over a few steps; waiting for a slower rank shows as grad_sync.

    Args:
        first_step: by default, chosen so that the last step that every rank traced comes last.

    Raises:
        ValueError: if none of the steps was traced.
    """
    from matplotlib.patches import Patch

    steps: dict[int, dict[int, list[dict[str, Any]]]] = {}  # rank -> step -> events
    traces = [read_trace_events(p) for p in sorted(Path(run_dir, "traces").glob("rank-*.json"))]
    for event in (event for events in (live_trace(run_dir), *traces) for event in events):
        of_step = steps.setdefault(event["pid"], {}).setdefault(event["args"]["step"], [])
        if of_step and of_step[0]["args"]["attempt"] < event["args"]["attempt"]:
            of_step.clear()  # lost work: a later attempt retrained the step
        of_step.append(event)
    traced = set.intersection(*map(set, steps.values())) if steps else set()
    first = first_step or max(1, max(traced, default=0) - num_steps + 1)
    shown = sorted(traced & set(range(first, first + num_steps)))
    if not shown:
        raise nothing_to_draw(run_dir, f"step {first} to {first + num_steps - 1} in traces/")
    start_us = min(event["ts"] for rank in steps for event in steps[rank][shown[0]])
    title = f"What each rank did in steps {shown[0]} to {shown[-1]}"
    subtitle = (
        "One bar per phase, at least 2 pixels wide. A line with a number is the start of "
    )
    subtitle += "that step."
    figure, axes = new_figure(2.2 + 0.8 * len(steps), title, subtitle)
    bars = [event for rank in steps for step in shown for event in steps[rank][step]]
    span_us = max(event["ts"] + event["dur"] for event in bars) - start_us
    shortest_ms = span_us / 1e3 / 450  # 2 of the roughly 900 pixels across
    for rank, by_step in steps.items():
        free_ms = 0.0  # from here on, there is room for the next number
        for step in shown:
            begin_ms = (min(event["ts"] for event in by_step[step]) - start_us) / 1e3
            has_number = begin_ms >= free_ms
            edges = [rank - (0.5 if has_number else 0.28), rank + 0.34]  # not through a number
            axes.plot([begin_ms] * 2, edges, color=INK, linewidth=1)
            if has_number:
                where: Style = {"textcoords": "offset points", "va": "top", "fontsize": 9}
                axes.annotate(f"{step}", (begin_ms, rank - 0.5), (3, 0), **where)
                # At least 10 pixels per digit, of the roughly 900 across.
                free_ms = begin_ms + span_us / 1e3 / 90 * (len(str(step)) + 0.5)
            for event in by_step[step]:
                left_ms, ms = (event["ts"] - start_us) / 1e3, event["dur"] / 1e3
                short: Style = {"zorder": 2} if ms < shortest_ms else {}
                style = phase_style(event["name"]) | short
                drawn_ms = max(ms, shortest_ms) if ms else 0.0
                axes.barh(rank + 0.04, drawn_ms, 0.56, left_ms, **style)
    axes.set_xlabel(f"milliseconds since step {shown[0]} began")
    axes.set_xlim(0, span_us / 1e3 * 1.01)
    axes.set_ylim(len(steps) - 0.5, -0.6)
    axes.set_yticks(list(steps), [f"rank {rank}" for rank in steps])
    axes.tick_params(axis="y", length=0)
    names = {event["name"] for event in bars}
    patches = [Patch(label=name, **phase_style(name)) for name in PHASE_STYLES if name in names]
    place: Style = {"loc": "outside lower center", "ncols": 8, "frameon": False, "fontsize": 9}
    figure.legend(handles=patches, handlelength=2.5, handleheight=1.2, **place)
    return on_any_theme(figure)

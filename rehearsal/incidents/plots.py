"""Pictures of the dashboards, in the style of ``rehearsal.evidence.pictures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    ORANGE,
    PHASE_STYLES,
    PURPLE,
    RANK_MARKERS,
    VERMILLION,
    new_figure,
    on_any_theme,
    rank_color,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def by_attempt(rows: Rows) -> dict[int, Rows]:
    """The rows of each attempt."""
    attempts = sorted({row["attempt"] for row in rows})
    return {n: [row for row in rows if row["attempt"] == n] for n in attempts}


def loss_and_rate(rows: Rows, unit: str) -> Figure:
    """The loss per step and attempt, and the learning rate on a second axis."""
    figure, axes = new_figure(4.0, "Loss", "As the job reports it; one line per attempt.")
    rates = axes.twinx()
    for attempt, of in by_attempt(rows).items():
        steps = [row["step"] for row in of]
        losses = [float("nan") if row["loss"] is None else row["loss"] for row in of]
        style: dict[str, Any] = {"color": rank_color(attempt), "linewidth": 2}
        axes.plot(steps, losses, label=f"loss, attempt {attempt}", **style)
        label = "learning rate" if attempt == rows[0]["attempt"] else ""
        rates.plot(steps, [row["lr"] for row in of], ":", color=PURPLE, label=label)
    axes.set(xlabel="optimizer step", ylabel=unit)
    rates.set(ylabel="learning rate", ylim=(0, None))
    rates.spines[["top"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    return on_any_theme(figure)


def throughput(rows: Rows) -> Figure:
    """Samples per second per step and attempt."""
    figure, axes = new_figure(3.4, "Throughput", "Of the whole job; one line per attempt.")
    for attempt, of in by_attempt(rows).items():
        rates = [row["samples_per_s"] for row in of]
        style: dict[str, Any] = {
            "color": rank_color(attempt),
            "marker": RANK_MARKERS[attempt % 7],
        }
        steps = [row["step"] for row in of]
        axes.plot(steps, rates, markersize=3, label=f"attempt {attempt}", **style)
    axes.set(xlabel="optimizer step", ylabel="samples/s", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    return on_any_theme(figure)


def phase_table(found: Mapping[int, Mapping[str, Mapping[str, float]]]) -> Figure:
    """p50, p95 and max of each phase and rank."""
    names = [name for name in PHASE_STYLES if any(name in of for of in found.values())]
    height = 1.8 + len(names) * (0.2 + 0.13 * len(found))
    subtitle = "Marker: p50, line: up to p95, tick: max. Without the first steps of a start."
    figure, axes = new_figure(height, "Where a step's time goes", subtitle)
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.5)
    gap = 0.8 / max(len(found), 1)
    for at, (rank, phases) in enumerate(found.items()):
        color, marker = rank_color(rank), RANK_MARKERS[rank % 7]
        for row, name in enumerate(names):
            if (ms := phases.get(name)) is None:
                continue
            y = row - 0.4 + (at + 0.5) * gap
            axes.plot([ms["p50"], ms["p95"]], [y, y], color=color, linewidth=3)
            axes.plot(ms["max"], y, "|", color=color, markersize=10, markeredgewidth=2)
            axes.plot(ms["p50"], y, marker, color=color, ms=7, clip_on=False, zorder=3)
        axes.plot([], [], marker, color=color, markersize=7, label=f"rank {rank}")
    for row in range(len(names) - 1):
        axes.axhline(row + 0.5, **FAINT)
    axes.set_yticks(range(len(names)), names)
    longest = max((ms["max"] for of in found.values() for ms in of.values()), default=1.0)
    ticks = [tick for tick in (0, 1, 10, 100, 1000, 10_000) if tick <= max(10, 2 * longest)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set(xlim=(0, 2 * longest), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("milliseconds per step (log scale; linear below 1)")
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return on_any_theme(figure)


def saves(rows: Rows) -> Figure:
    """How long each save took, and how many steps had passed since the one before."""
    figure, axes = new_figure(3.2, "Checkpoints", "One bar per save.")
    gaps = axes.twinx()
    places = range(len(rows))
    axes.bar(places, [row["save_ms"] for row in rows], color=BLUE, label="save (ms)")
    steps = [row["steps_since"] for row in rows]
    style: dict[str, Any] = {"color": ORANGE, "linestyle": "none", "marker": "D"}
    gaps.plot(places, steps, label="steps since the save before", **style)
    axes.set_xticks(places, [f"{row['step']}\n({row['attempt']})" for row in rows])
    axes.set(xlabel="step of the save (attempt)", ylabel="duration of the save (ms)")
    gaps.set(ylabel="steps", ylim=(0, None))
    gaps.spines[["top"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return on_any_theme(figure)


def memory(found: Mapping[int, Rows]) -> Figure:
    """Each rank's memory per step; a restart begins a new line."""
    figure, axes = new_figure(
        3.4, "Host memory", "What each rank holds itself, after each step."
    )
    top = 1.0
    for rank, rows in found.items():
        for attempt, of in by_attempt(rows).items():
            label = f"rank {rank}" if attempt == rows[0]["attempt"] else ""
            steps, used = [r["step"] for r in of], [r["memory_mib"] for r in of]
            # Ranks that agree would hide each other.
            style: dict[str, Any] = {"color": rank_color(rank), "linewidth": 7 - 2 * rank}
            axes.plot(steps, used, label=label, **style)
            top = max(top, *used)
            if attempt != rows[0]["attempt"]:
                axes.axvline(steps[0], color=VERMILLION, linestyle=":", linewidth=1)
    axes.set(
        xlabel="optimizer step (dotted: a restart)", ylabel="memory (MiB)", ylim=(0, 1.15 * top)
    )
    axes.legend(frameon=False, fontsize=9)
    return on_any_theme(figure)

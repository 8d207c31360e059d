"""The pictures of chapter 15: counted FLOPs, memory, a ring all-reduce, a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rehearsal.evidence.pictures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
)
from rehearsal.handbook.numbers import (
    MIXED,
    STATES,
    Sharding,
    attainable_flop_per_s,
    memory_per_gpu_bytes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARDINGS: tuple[tuple[Sharding, str], ...] = (
    ("ddp", "DDP"), ("zero1", "ZeRO-1"), ("zero2", "ZeRO-2"), ("zero3", "ZeRO-3"),
)  # fmt: skip
COUNTS = ("#C6DBEF", "#6BAED6", "#2171B5", "#08306B")  # light to dark: one more rank summed


def flops_figure(counted: Mapping[int, float], width: int) -> Figure:
    """Counted FLOPs per token over 6 N, by sequence length, and the formula 1 + s / 6d."""
    figure, axes = new_figure(
        3.2,
        "What 6 N leaves out: attention",
        "FLOPs of forward and backward per token, over 6 N",
    )
    lengths = list(counted)
    line = [0, max(lengths)]
    axes.plot(line, [1 + s / (6 * width) for s in line], color=BLUE, label="1 + s / 6d")
    axes.axhline(1, color=INK, linestyle="--", linewidth=1, label="6 N")
    axes.plot(lengths, list(counted.values()), "o", color=VERMILLION, label="counted")
    axes.set(xlabel="sequence length s (tokens)", ylabel="ratio to 6 N", ylim=(0, None))
    axes.set_xlim(0, max(lengths) * 1.03)
    axes.legend(frameon=False, loc="lower right")
    return on_any_theme(figure)


def memory_figure(billions: Sequence[float], num_gpus: int, memory_gb: float) -> Figure:
    """Weights, gradients and optimizer on each GPU: a panel per model, a bar per sharding."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    figure, panels = plt.subplots(
        1, len(billions), figsize=(10, 3.8), dpi=100, layout="constrained", squeeze=False
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    parts = (
        ("weights", MIXED._replace(gradients=0, optimizer=0), BLUE, ""),
        ("gradients", MIXED._replace(weights=0, optimizer=0), ORANGE, "///"),
        ("optimizer", MIXED._replace(weights=0, gradients=0), GREEN, "---"),
    )
    for axes, size in zip(panels[0], billions, strict=True):
        whole = memory_per_gpu_bytes(size * 1e9, num_gpus, "ddp") / 1e9
        for at, (sharding, _) in enumerate(SHARDINGS):
            bottom = 0.0
            for label, states, color, hatch in parts:
                gb = memory_per_gpu_bytes(size * 1e9, num_gpus, sharding, states) / 1e9
                axes.bar(
                    at, gb, 0.65, bottom, color=color, hatch=hatch, edgecolor="white",
                    label=label if at == 0 else None,
                )  # fmt: skip
                bottom += gb
            # Not across the line: just below it, the number goes above it.
            near = bottom <= memory_gb < bottom + 0.12 * whole
            axes.annotate(
                f"{bottom:.1f}".removesuffix(".0"), (at, memory_gb if near else bottom), (0, 3),
                textcoords="offset points", ha="center", fontweight="bold",
                color=INK if bottom <= memory_gb else VERMILLION,
            )  # fmt: skip
        axes.axhline(memory_gb, color=VERMILLION, linestyle="--", linewidth=1.5)
        axes.set_title(f"{size:g}B parameters", loc="left", fontsize=11, fontweight="bold")
        axes.set_xticks(range(len(SHARDINGS)), [name for _, name in SHARDINGS], fontsize=9)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel(f"GB on each of {num_gpus} GPUs")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=VERMILLION, linestyle="--"))
    figure.legend(
        handles,
        [*labels, f"{memory_gb:g} GB"],
        loc="outside lower left",
        ncols=4,
        frameon=False,
    )
    return on_any_theme(figure)


class Saved(NamedTuple):
    """What one layer keeps for its backward pass, measured and by the formula."""

    seq_len: int
    measured_bytes: float
    formula_bytes: float


def activation_figure(kinds: Mapping[str, Sequence[Saved]]) -> Figure:
    """A color per kind of layer: the formula as a line, the measurements as marks."""
    figure, axes = new_figure(
        3.8, "What one layer keeps for backward", "line: formula; mark: saved tensors, counted"
    )
    styles = ((VERMILLION, "o"), (ORANGE, "s"), (BLUE, "D"), (GREEN, "^"))
    for (kind, rows), (color, marker) in zip(kinds.items(), styles, strict=False):
        lengths = [row.seq_len for row in rows]
        axes.plot(lengths, [row.formula_bytes / 1e6 for row in rows], color=color)
        measured = [row.measured_bytes / 1e6 for row in rows]
        axes.plot(lengths, measured, marker, color=color, label=kind)
    axes.set(xlabel="sequence length s (tokens)", ylabel="MB", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    return on_any_theme(figure)


def ring_figure(histories: Sequence[Sequence[Sequence[float]]]) -> Figure:
    """Which chunks hold how many ranks' values, after each step of a ring all-reduce.

    Args:
        histories: of each rank, after each step, the value of each chunk. Every rank started
            with ones, so a value says how many ranks are summed in it.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    num_ranks, num_steps = len(histories), len(histories[0])
    figure, panels = plt.subplots(
        1, num_steps, figsize=(10, 2.3), dpi=100, layout="constrained", sharey=True
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for step, axes in enumerate(panels):
        counts = [[round(value) for value in history[step]] for history in histories]
        axes.imshow(
            counts, cmap=ListedColormap(COUNTS[:num_ranks]), vmin=1, vmax=max(num_ranks, 2)
        )
        for rank, row in enumerate(counts):
            for chunk, count in enumerate(row):
                color = "white" if count > 2 else "#111111"
                axes.text(chunk, rank, str(count), ha="center", va="center", color=color)
        phase = "sum" if step < num_ranks else "copy"
        axes.set_title("start" if step == 0 else f"step {step}: {phase}", fontsize=10)
        axes.set_xticks(range(num_ranks))
        axes.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
        axes.set_xlabel("chunk", fontsize=9)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return on_any_theme(figure)


def allreduce_figure(
    measured_s: Mapping[int, float], latency_s: float, bytes_per_s: float
) -> Figure:
    """Measured times, the two parts of the formula and their sum, by size."""
    figure, axes = new_figure(
        3.4, "An all-reduce is latency, then bandwidth", "shortest time of one, by size"
    )
    sizes = list(measured_s)
    fitted = [latency_s + size / bytes_per_s for size in sizes]
    axes.plot(sizes, [1e3 * s for s in fitted], color=BLUE, label="latency + bytes / bandwidth")
    flat: Style = {"color": INK, "linewidth": 1}
    axes.plot(sizes, [1e3 * latency_s] * len(sizes), linestyle="--", label="latency", **flat)
    rising = [1e3 * size / bytes_per_s for size in sizes]
    axes.plot(sizes, rising, linestyle=":", label="bytes / bandwidth", **flat)
    axes.plot(
        sizes, [1e3 * s for s in measured_s.values()], "o", color=VERMILLION, label="measured"
    )
    axes.set(xscale="log", yscale="log", xlabel="bytes on each rank", ylabel="milliseconds")
    axes.set_ylim(bottom=1e3 * min(latency_s, *measured_s.values()) / 4)
    axes.legend(frameon=False, loc="upper left")
    return on_any_theme(figure)


class Point(NamedTuple):
    """One operation on a roofline."""

    name: str
    intensity: float  # FLOPs per byte
    flop_per_s: float


def roofline_figure(points: Sequence[Point], peak: float, bytes_per_s: float) -> Figure:
    """Two roofs and the operations under them, on logarithmic axes."""
    figure, axes = new_figure(
        4.2, "A roofline, measured on one core", "an operation can't be above the line"
    )
    ridge = peak / bytes_per_s
    low, high = min(p.intensity for p in points) / 2, max(p.intensity for p in points) * 5
    roof = [low, ridge, high]
    heights = [attainable_flop_per_s(x, peak, bytes_per_s) / 1e9 for x in roof]
    axes.plot(roof, heights, color=BLUE, linewidth=2)
    axes.axvline(ridge, color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        f"ridge: {ridge:.1f} FLOP/byte", (ridge, heights[0]), (6, 0),
        textcoords="offset points", color=INK,
    )  # fmt: skip
    for point in points:
        left_of_ridge = point.intensity < ridge
        axes.plot(
            point.intensity, point.flop_per_s / 1e9, "s" if left_of_ridge else "o",
            color=ORANGE if left_of_ridge else PURPLE, markersize=8,
        )  # fmt: skip
        axes.annotate(
            point.name, (point.intensity, point.flop_per_s / 1e9), (8, -11),
            textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylabel="GFLOP/s")
    axes.set_xlabel("arithmetic intensity (FLOP per byte of memory traffic)")
    return on_any_theme(figure)


def memory_table(billions: Sequence[float], num_gpus: int, memory_gb: float) -> str:
    """GB per GPU for each model and sharding; a star marks what doesn't fit."""
    header = f"{'GB per GPU':12}" + "".join(f"{name:>10}" for _, name in SHARDINGS)
    lines = [header]
    for size in billions:
        line = f"{f'{size:g}B':12}"
        for sharding, _ in SHARDINGS:
            gb = (
                memory_per_gpu_bytes(size * 1e9, num_gpus, sharding, STATES["bf16, Adam"]) / 1e9
            )
            line += f"{f'{gb:.1f}' + ('*' if gb > memory_gb else ' '):>10}"
        lines.append(line)
    return "\n".join(lines)

"""In which order a pipeline's stages work, when each can start, and how much of that is idle.

An operation is ("F", i) or ("B", i): the forward or backward pass of micro-batch i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rehearsal.evidence.pictures import BLUE, ORANGE, on_any_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Operation = tuple[str, int]


def gpipe(stage: int, num_stages: int, num_micro: int) -> list[Operation]:
    """All forward passes, then all backward passes: each stage holds every micro-batch."""
    return [(kind, i) for kind in "FB" for i in range(num_micro)]


def one_forward_one_backward(stage: int, num_stages: int, num_micro: int) -> list[Operation]:
    """1F1B: after a warmup, a forward pass for each backward pass.

    A stage holds at most as many micro-batches as there are stages from it to the last one.
    """
    ahead = min(num_stages - 1 - stage, num_micro)
    order: list[Operation] = [("F", i) for i in range(ahead)]
    for i in range(num_micro - ahead):
        order += [("F", ahead + i), ("B", i)]
    return order + [("B", i) for i in range(num_micro - ahead, num_micro)]


def start_ticks(orders: Sequence[Sequence[Operation]]) -> list[list[int]]:
    """When each stage's operations start, if each takes one tick and a transfer takes none.

    A stage keeps its order. A forward pass waits for that of the stage before, and a backward
    pass for that of the stage after.

    Args:
        orders: the operations of each stage, in the order in which it does them.
    """
    last = len(orders) - 1
    ended: dict[tuple[int, str, int], int] = {}
    ticks: list[list[int]] = [[] for _ in orders]
    while any(len(done) < len(order) for done, order in zip(ticks, orders, strict=True)):
        before = len(ended)
        for stage, order in enumerate(orders):
            if len(ticks[stage]) == len(order):
                continue
            kind, i = order[len(ticks[stage])]
            step = -1 if kind == "F" else 1
            ready = 0
            if 0 <= stage + step <= last:
                if (stage + step, kind, i) not in ended:
                    continue
                ready = ended[stage + step, kind, i]
            start = max(ready, ticks[stage][-1] + 1 if ticks[stage] else 0)
            ticks[stage].append(start)
            ended[stage, kind, i] = start + 1
        assert len(ended) > before, "each stage waits for another one"
    return ticks


def idle_fraction(orders: Sequence[Sequence[Operation]]) -> float:
    """The bubble: which part of all stages' ticks does nothing, from the first to the last."""
    total = 1 + max(max(ticks) for ticks in start_ticks(orders))
    return 1 - sum(map(len, orders)) / (total * len(orders))


def schedule_picture(runs: Mapping[str, Sequence[Sequence[Operation]]]) -> Figure:
    """Each run's operations in ticks, a row per stage; what is blank is the bubble."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    height_in = 0.9 + sum(0.55 + 0.34 * len(orders) for orders in runs.values())
    figure, grid = plt.subplots(
        len(runs), figsize=(10, height_in), dpi=100, layout="constrained", sharex=True,
        squeeze=False,
    )  # fmt: skip
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for axes, (name, orders) in zip(grid[:, 0], runs.items(), strict=True):
        draw_schedule(axes, orders)
        title = f"{name}: idle {idle_fraction(orders):.0%} of the time"
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    grid[-1, 0].set_xlabel("time (ticks; a forward or a backward pass takes one)")
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white")
        for color, hatch in LOOKS.values()
    ]
    names = ["forward pass of a micro-batch", "backward pass"]
    figure.legend(handles, names, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return on_any_theme(figure)


LOOKS = {"F": (BLUE, ""), "B": (ORANGE, "///")}


def draw_schedule(axes: Axes, orders: Sequence[Sequence[Operation]]) -> None:
    """One run: a box per operation, with its micro-batch's number."""
    for stage, (order, ticks) in enumerate(zip(orders, start_ticks(orders), strict=True)):
        for (kind, i), tick in zip(order, ticks, strict=True):
            color, hatch = LOOKS[kind]
            axes.barh(stage, 1, 0.8, tick, color=color, hatch=hatch, edgecolor="white", lw=0.8)
            paper = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
            axes.text(
                tick + 0.5, stage, f"{i}", ha="center", va="center", fontsize=8,
                color="#1A202C", bbox=paper,
            )  # fmt: skip
    axes.set_yticks(range(len(orders)), [f"stage {stage}" for stage in range(len(orders))])
    axes.set_ylim(len(orders) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)

"""Watch where a small job's steps spend their time; draw a healthy run next to a broken one.

A ``Run`` has, for each rank, one mapping per step: phase to milliseconds, in the order of
``trainer_core.metrics.PHASES``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rehearsal.evidence.pictures import (
    BLUE,
    GREEN,
    INK,
    PHASE_STYLES,
    PURPLE,
    VERMILLION,
    new_figure,
    on_any_theme,
    phase_style,
)
from rehearsal.handbook.on_ranks import on_ranks
from rehearsal.session.display import has_front_end, show
from trainer_core.metrics import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Step = Mapping[str, float]
Run = Sequence[Sequence[Step]]

# The model ----------------------------------------------------------------------------------


class TakesTime(torch.autograd.Function):
    """Waits in the forward pass, and twice as long in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        """The values as they are, after the wait."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient as it is, after the wait."""
        time.sleep(2 * ctx.seconds)
        return grads[0], None


class Block(nn.Module):
    """A layer on a stand-in for an accelerator: it takes a while, and the core is free.

    Args:
        seconds: what the forward pass takes; the backward pass takes twice that.
        on_core: compute on this process's core instead, for about a millisecond.
    """

    def __init__(self, width: int = 64, seconds: float = 0.001, on_core: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds, self.on_core = seconds, on_core

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs, of the inputs' shape."""
        outputs = F.gelu(self.linear(inputs))
        if not self.on_core:
            apply: Any = TakesTime.apply  # without annotations in torch
            waited: Tensor = apply(outputs, self.seconds)
            return waited
        square = torch.ones(256, 256, requires_grad=True)
        return outputs + 0 * (square @ square).mean()


# Watching -----------------------------------------------------------------------------------


def report_steps(steps: Iterable[tuple[int, Step, Any]]) -> list[Step]:
    """In a rank: print each step's phases as it ends, and return them all.

    Steps before the first are the warm-up: they allocate, and DDP rearranges its buckets.
    """
    kept = []
    for number, spent, _ in steps:
        if number >= 1:
            kept.append(spent)
            print(json.dumps(spent), flush=True)
    return kept


class PhaseTable:
    """Each rank's median step so far; in a notebook it changes while the ranks run."""

    def __init__(self, world_size: int) -> None:
        self.run: list[list[Step]] = [[] for _ in range(world_size)]
        self.name = f"phases-{time.monotonic_ns()}"
        self.shown_at = time.monotonic()
        if has_front_end():
            show(str(self), is_code=True, display_id=self.name)

    def take(self, line: str) -> None:
        """A line that a rank printed, as "[0] {...}"."""
        rank, _, text = line.partition(" ")
        if text.startswith('{"data_wait"'):
            self.run[int(rank[1:-1])].append(json.loads(text))
        else:  # printed by the notebook's own code
            print(line)
        if time.monotonic() > self.shown_at + 0.2:
            self.show()

    def show(self) -> None:
        """In a notebook, bring the table up to date."""
        self.shown_at = time.monotonic()
        if has_front_end():
            from IPython.display import update_display

            update_display({"text/plain": str(self)}, raw=True, display_id=self.name)

    def finish(self, run: Run) -> None:
        """Show the last state."""
        self.run = [list(steps) for steps in run]
        if has_front_end():
            self.show()
        else:
            print(self)

    def __str__(self) -> str:
        head = ["median ms", *PHASES, "step", "slowest"]
        rows = [head]
        for rank, steps in enumerate(self.run):
            if not steps:
                rows.append([f"rank {rank}", *["-"] * (len(head) - 1)])
                continue
            walls = [sum(step.values()) for step in steps]
            columns = [[step[name] for step in steps] for name in PHASES]
            medians = [statistics.median(values) for values in [*columns, walls]]
            rows.append([f"rank {rank}", *(f"{ms:.1f}" for ms in [*medians, max(walls)])])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def watch(one_rank: Callable[[], list[Step]], world_size: int = 2) -> Run:
    """Run ``one_rank()`` on each rank, with a table of its phases that follows the job.

    Args:
        one_rank: joins no group: it finds one. It returns what ``report_steps`` returns.

    Raises:
        RankFailed: if a rank raised, died, or didn't return within two minutes.
        ValueError: if the world size is out of bounds.
    """
    table = PhaseTable(world_size)
    run: Run = on_ranks(one_rank, world_size, echo=table.take, deadline_s=120.0)
    table.finish(run)
    return run


# Drawing ------------------------------------------------------------------------------------


def step_stacks(runs: Mapping[str, Run]) -> Figure:
    """Each step as a stack of its phases: a column of pictures per run, and a row per rank.

    Runs are cut to the length of the shortest, so that equal widths are equal steps.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    num_ranks = max(len(run) for run in runs.values())
    num_steps = min(len(steps) for run in runs.values() for steps in run)
    figure, grid = plt.subplots(
        num_ranks, len(runs), figsize=(10, 1.1 + 1.6 * num_ranks), dpi=100,
        layout="constrained", sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    # One shape per phase, not one per bar: between two steps it has no height.
    edges = [number + side for number in range(1, num_steps + 1) for side in (-0.45, 0.45)]
    drawn: set[str] = set()
    top = 1.05 * max(
        sum(s.values()) for run in runs.values() for ss in run for s in ss[:num_steps]
    )
    for column, (name, run) in enumerate(runs.items()):
        grid[0, column].set_title(name, loc="left", fontsize=11, fontweight="bold")
        grid[-1, column].set_xlabel("step")
        for rank, steps in enumerate(run):
            axes, below = grid[rank, column], [0.0] * num_steps
            for phase_name in PHASE_STYLES:
                heights = [step.get(phase_name, 0.0) for step in steps[:num_steps]]
                if max(heights) < top / 100:  # not a pixel
                    continue
                above = [low + high for low, high in zip(below, heights, strict=True)]
                tops, bottoms = (
                    [side for level in levels for side in (level, 0.0)][:-1]
                    for levels in (above, below)
                )
                axes.stairs(tops, edges, baseline=bottoms, fill=True, **phase_style(phase_name))
                below = above
                drawn.add(phase_name)
            axes.spines[["top", "right"]].set_visible(False)
    for rank in range(num_ranks):
        grid[rank, 0].set_ylabel(f"rank {rank}: ms")
    grid[0, 0].set(ylim=(0, top), xlim=(0.4, num_steps + 0.6))
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    patches = [Patch(label=name, **phase_style(name)) for name in PHASE_STYLES if name in drawn]
    figure.legend(
        handles=patches, loc="outside lower left", ncols=8, frameon=False, fontsize=9,
        handlelength=2.5, handleheight=1.2,
    )  # fmt: skip
    return on_any_theme(figure)


def efficiency_lines(efficiency: Mapping[str, Mapping[int, float]], num_cores: int) -> Figure:
    """Scaling efficiency by world size, one line per kind of run.

    Args:
        efficiency: kind -> world size -> efficiency, where 1 is perfect.
        num_cores: of this machine; beyond it, ranks that compute share them.
    """
    colors, markers = (BLUE, GREEN, VERMILLION, PURPLE), "osD^"
    figure, axes = new_figure(
        3.4, "Scaling efficiency", f"step times are medians; {num_cores} cores"
    )
    for (kind, of), color, marker in zip(efficiency.items(), colors, markers, strict=False):
        style: dict[str, Any] = {"color": color, "marker": marker, "linewidth": 2}
        axes.plot(list(of), [100 * share for share in of.values()], label=kind, **style)
    axes.axhline(100, color=INK, linewidth=0.8, linestyle=":")
    sizes = sorted({size for of in efficiency.values() for size in of})
    axes.set(xlabel="ranks", ylabel="efficiency (%)", ylim=(0, None), xticks=sizes)
    axes.legend(frameon=False, fontsize=9)
    return on_any_theme(figure)

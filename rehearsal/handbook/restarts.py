"""Break the trainer on purpose, start it again, and see what each restart cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.evidence.pictures import BLUE, INK, VERMILLION, Style, new_figure, on_any_theme
from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.faults.breaks import Act
from rehearsal.handbook.trainer_runs import run_trainer
from trainer_core.checkpoint_format import published_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# 400 samples in global batches of 16 are 25 steps; saved after 4, 8, ... and at the end.
PLAN: dict[str, Any] = {
    "dataset_size": 400,
    "pinned_global_batch_size": 16,
    "micro_batch_size": 16,
    "grad_accum_steps": 1,
    "max_epochs": 1,
    "checkpoint_every_steps": 4,
    "trace_steps": 0,
}


def start(
    run_dir: Path, world_size: int, fault: Act | None = None, **settings: Any
) -> list[str]:
    """Start the trainer in a run folder, as a scheduler would, and wait for it to end.

    Args:
        fault: called in each rank before it trains, to make something fail.
        settings: of ``TrainConfig``, over ``PLAN``.

    Returns:
        How each rank ended, in a line.

    Raises:
        ValueError: if a setting or the world size is out of bounds.
    """
    reports = run_trainer(run_dir, world_size, fault, **{**PLAN, **settings})
    return [f"rank {report.rank}: {how_it_ended(report)}" for report in reports]


def how_it_ended(report: RankReport) -> str:
    """One rank's end, without paths of gloo's source."""
    if report.failure is not None:
        return f"{report.failure.kind}: {without_paths(report.failure.message)}"
    if report.exitcode is None:
        return "still running at the deadline"
    if report.exitcode < 0:
        return f"killed by signal {-report.exitcode}"
    return f"{report.answer['status']} at step {report.answer['step']}"


def without_paths(message: str) -> str:
    """The first sentence of an error, without a place in gloo's source or an address."""
    message = re.sub(r"\[/\S+\] ", "", message)
    message = re.sub(r" \[127\.0\.0\.1\]:\d+", "", message)
    return message.partition(". ")[0]


class Stall(NamedTuple):
    """The longest save of a run, in milliseconds."""

    saved: float  # until it was published
    waited: float  # how long training waited for a save


def longest_stall_ms(run_dir: Path) -> Stall:
    """What rank 0's log says about the run's saves."""
    events = list(read_jsonl(run_dir / "logs" / "rank-0.jsonl"))
    saved = [1e3 * event["seconds"] for event in events if event["event"] == "checkpoint_saved"]
    waited = [
        event["phases"]["checkpoint"]["max"]
        for event in events
        if event["event"] == "train_progress"
    ]
    return Stall(max(saved), max(waited))


class Attempt(NamedTuple):
    """One start that trained."""

    world_size: int
    first: int  # its first step
    last: int  # its last step, on whichever rank got furthest
    lost: int  # how many of them no checkpoint has, so that they are trained again


def attempts_of(run_dir: Path) -> list[Attempt]:
    """Each start that completed a step, from the ledgers of all ranks."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for path in rank_files(run_dir, "ledger"):
        for line in read_jsonl(path):
            steps.setdefault(line["attempt"], []).append((line["step"], line["world_size"]))
    ends = [
        (size, min(step for step, _ in lines), max(step for step, _ in lines))
        for lines in (steps[attempt] for attempt in sorted(steps))
        for size in [lines[0][1]]
    ]
    newest = max(published_steps(run_dir / "checkpoints"), default=0)
    following = [first for _, first, _ in ends[1:]] + [newest + 1]
    return [
        Attempt(size, first, last, max(0, last + 1 - after))
        for (size, first, last), after in zip(ends, following, strict=True)
    ]


def restart_picture(stories: Mapping[str, Path]) -> Figure:
    """One block per fault, one bar per attempt: what was kept, and what was trained again.

    Args:
        stories: the fault -> its run folder.
    """
    from matplotlib.patches import Patch

    names, bars = list(stories), [attempts_of(folder) for folder in stories.values()]
    rows = sum(map(len, bars)) + 0.7 * len(bars)
    subtitle = "A bar is one start of the job, as wide as the steps that it trained."
    figure, axes = new_figure(1.3 + 0.32 * rows, "What a restart costs", subtitle)
    y, ticks = 0.0, []
    for name, attempts in zip(names, bars, strict=True):
        ticks.append((y + (len(attempts) - 1) / 2, name))
        for attempt in attempts:
            kept = attempt.last - attempt.lost
            style: Style = {"height": 0.8, "edgecolor": "white", "linewidth": 0.8}
            width = kept - attempt.first + 1
            axes.barh(y, width, left=attempt.first - 0.5, color=BLUE, **style)
            axes.barh(y, attempt.lost, left=kept + 0.5, color=VERMILLION, hatch="xxx", **style)
            text = f"{attempt.world_size} ranks, steps {attempt.first} to {attempt.last}"
            text += f", {attempt.lost} lost" if attempt.lost else ""
            axes.text(attempt.last + 0.8, y, text, va="center", fontsize=9, color=INK)
            y += 1
        y += 0.7
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="optimizer step", ylim=(y - 1.1, -0.7))
    axes.set_xlim(0.5, 36)
    axes.set_xticks(range(4, 26, 4))
    handles = [
        Patch(facecolor=BLUE, label="kept"),
        Patch(facecolor=VERMILLION, hatch="xxx", edgecolor="white", label="lost, to be redone"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    return on_any_theme(figure)

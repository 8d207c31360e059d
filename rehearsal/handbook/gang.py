"""A cluster's scheduler, simulated minute by minute: who holds which GPUs, and who trains.

A job trains only while all of its workers hold a GPU. Two schedulers differ in one function,
``place``, which the chapter defines: of the workers that wait, which ones get a free GPU?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rehearsal.evidence.pictures import INK, Style, on_any_theme, rank_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Job(NamedTuple):
    """A job of one worker per GPU; it can start with nothing less."""

    name: str
    workers: int
    minutes: int  # of training
    arrives: int = 0  # minute


class Worker(NamedTuple):
    """One process of a job, which needs one GPU."""

    job: Job
    number: int


# Of the waiting workers, in the order of their creation, and so many free GPUs: who gets one.
Place = Callable[[Sequence[Worker], int], Sequence[Worker]]


@dataclass
class Timeline:
    """What happened: per minute and GPU, the job that held it, and whether that job trained."""

    gpus: int
    minutes: list[list[tuple[str, bool] | None]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)  # job: minute
    is_deadlocked: bool = False

    def count(self, trains: bool) -> int:
        """GPU-minutes held by jobs that train, or by jobs that wait for the rest of theirs."""
        held = (cell for minute in self.minutes for cell in minute if cell)
        return sum(is_training == trains for _, is_training in held)

    @property
    def utilization(self) -> float:
        """Training GPU-minutes, of all that there were."""
        return self.count(True) / (self.gpus * len(self.minutes))


def created_together(jobs: Sequence[Job]) -> list[Worker]:
    """The workers of jobs that arrive at the same time: they are created in turn."""
    numbers = range(max((job.workers for job in jobs), default=0))
    return [Worker(job, number) for number in numbers for job in jobs if number < job.workers]


def simulate(jobs: Sequence[Job], gpus: int, place: Place, limit: int = 1000) -> Timeline:
    """Run the jobs until all have ended, nothing can change anymore, or ``limit`` minutes."""
    timeline = Timeline(gpus)
    waiting: list[Worker] = []
    holders: list[Worker | None] = [None] * gpus
    left = {job: job.minutes for job in jobs}
    for minute in range(limit):
        waiting += created_together([job for job in jobs if job.arrives == minute])
        for worker in place(waiting, holders.count(None)):
            waiting.remove(worker)
            holders[holders.index(None)] = worker
        held = [worker.job for worker in holders if worker]
        training = {job for job in held if held.count(job) == job.workers}
        timeline.minutes.append(
            [
                (worker.job.name, worker.job in training) if worker else None
                for worker in holders
            ]
        )
        for job in training:
            left[job] -= 1
            if left[job] == 0:
                timeline.ended[job.name] = minute + 1
                holders = [None if w and w.job == job else w for w in holders]
        if len(timeline.ended) == len(jobs):
            break
        if not training and held and minute > max(job.arrives for job in jobs):
            timeline.is_deadlocked = True  # nobody trains, so nobody will ever give a GPU back
            break
    return timeline


def gpu_picture(timelines: dict[str, Timeline], minutes: int) -> Figure:
    """Who holds each GPU when, one panel per scheduler; hatched: held, and not training."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, panels = plt.subplots(
        1, len(timelines), figsize=(10, 3.4), dpi=100, layout="constrained", squeeze=False
    )
    plt.close(figure)
    figure.suptitle("Who holds each GPU", x=0.01, ha="left", fontsize=14, fontweight="bold")
    seen: list[str] = []
    for axes, (name, timeline) in zip(panels[0], timelines.items(), strict=True):
        ending = "deadlock" if timeline.is_deadlocked else "all jobs done"
        axes.set_title(f"{name}: {ending}", loc="left", fontsize=10)
        draw_panel(axes, timeline, minutes, seen)
        axes.set(xlabel="minute", xlim=(0, minutes), ylim=(timeline.gpus - 0.5, -0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("GPU")
    for at, name in enumerate(seen):
        panels[0][0].barh(0, 0, color=rank_color(at), label=f"job {name} trains")
    panels[0][0].barh(
        0, 0, facecolor="none", edgecolor=INK, hatch="///", label="held, but not training"
    )
    figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=9)
    return on_any_theme(figure)


def draw_panel(axes: Axes, timeline: Timeline, minutes: int, seen: list[str]) -> None:
    """One scheduler's GPUs. A deadlock goes on to the end of the panel."""
    rows = timeline.minutes
    if timeline.is_deadlocked:
        rows = rows + [rows[-1]] * (minutes - len(rows))
    for minute, row in enumerate(rows[:minutes]):
        for gpu, cell in enumerate(row):
            if cell is None:
                continue
            name, is_training = cell
            if name not in seen:
                seen.append(name)
            color = rank_color(seen.index(name))
            look: Style = {"facecolor": color, "linewidth": 0.0}
            if not is_training:
                look = {
                    "facecolor": "none",
                    "edgecolor": color,
                    "hatch": "////",
                    "linewidth": 0,
                }
            axes.barh(gpu, 1, 0.86, minute, **look)

"""The optimizer steps of a run, as its ranks recorded them.

Read from the events "start", "forward", "before_step", "stepped", "file" and "end".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.weights import Weights


class Step(NamedTuple):
    """One optimizer step of one rank. ``after`` is empty if the step was not completed."""

    samples: list[int]
    rng: str  # empty without a forward pass
    lr: float
    before: Weights
    after: Weights


class Start(NamedTuple):
    """What one rank did from one call of ``train`` to its end, or to the kill."""

    steps: list[Step]
    files: list[str]  # that it touched
    end: Weights  # empty if it did not return


def start_in(report: RankReport, folder: str) -> Start | None:
    """The last start in ``folder``; None if there was none."""
    begins = [i for i, e in enumerate(report.events) if e["kind"] == "start"]
    begins = [i for i in begins if report.events[i]["folder"] == folder]
    if not begins:
        return None
    steps: list[Step] = []
    files: list[str] = []
    samples: list[int] = []
    rng = ""
    for event in report.events[begins[-1] + 1 :]:
        kind = event["kind"]
        if kind == "start":
            break
        if kind == "end":
            return Start(steps, files, event["weights"])
        if kind == "file":
            files += filter(None, [event["path"]])
        elif kind == "forward":
            samples, rng = samples + event["samples"], rng or event["rng"]
        elif kind == "before_step":
            steps.append(Step(sorted(samples), rng, event["lr"], event["weights"], {}))
            samples, rng = [], ""
        elif kind == "stepped" and steps:
            steps[-1] = steps[-1]._replace(after=event["weights"])
    return Start(steps, files, {})


class Reached(NamedTuple):
    """How many steps of the run the ranks had done when one of them was killed."""

    by_all: int
    by_any: int


class UninterruptedRun(NamedTuple):
    """The steps that each rank takes when nobody kills the run."""

    ranks: list[list[Step]]
    steps_per_epoch: int

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return len(self.ranks[0])

    def position(self, rank: int, weights: Weights) -> int | None:
        """After how many steps ``rank`` had these weights; None if it never had them."""
        steps = self.ranks[rank]
        had = [step.before for step in steps] + [steps[-1].after]
        return had.index(weights) if weights in had else None

    def reached(self, reports: Sequence[RankReport], folder: str) -> Reached:
        """After how many steps of the run the last start in ``folder`` ended."""
        starts = [start_in(report, folder) for report in reports]
        last = [
            self.position(rank, start.steps[-1].after or start.steps[-1].before)
            for rank, start in enumerate(starts)
            if start and start.steps
        ]
        places = [place or 0 for place in last] or [0]
        return Reached(by_all=min(places), by_any=max(places))

    def step_with(self, samples: Iterable[int], near: int) -> int | None:
        """The step, from 0, that trains exactly these samples; the nearest of several."""
        wanted = sorted(samples)
        found = [
            number
            for number, steps in enumerate(zip(*self.ranks, strict=True))
            if sorted(joined(steps)) == wanted
        ]
        return min(found, key=lambda number: abs(number - near), default=None)


def joined(steps: Iterable[Step]) -> list[int]:
    """The samples of one step over all ranks."""
    return [sample for step in steps for sample in step.samples]

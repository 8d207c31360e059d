"""The steps of a run and of its restarts, told by their weights.

Read from the events "started", "pass", "optimizer_step" and "ended", which
``observe.starts.watched_start`` records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.weights import Weights, largest_difference


class RunStep(NamedTuple):
    """The weights with which a step began, and its samples."""

    before: Weights
    samples: list[int]


class RankStart(NamedTuple):
    """What one rank did from one call of ``train`` to its end, or to the kill."""

    given: Weights  # before the call
    steps: list[RunStep]
    num_passes: int  # forward passes that train
    num_updates: int  # steps of torch's optimizers; 0 if the learner writes the updates out
    end: Weights  # empty if it did not return

    @property
    def first(self) -> Weights:
        """The weights with which it began to train, or else returned; empty if neither."""
        return self.steps[0].before if self.steps else self.end


class RunStart(NamedTuple):
    """One call of ``train`` on all ranks."""

    ranks: list[RankStart]

    @property
    def steps(self) -> list[RunStep]:
        """The steps of all ranks together; a rank without samples may not show in each."""
        longest = max((rank.steps for rank in self.ranks), key=len, default=[])
        return [
            RunStep(
                step.before,
                sorted(
                    sample
                    for rank in self.ranks
                    for other in rank.steps
                    if other.before == step.before
                    for sample in other.samples
                ),
            )
            for step in longest
        ]

    @property
    def complete_steps(self) -> list[RunStep]:
        """The steps, without one in which a rank was killed or failed."""
        return self.steps if all(rank.end for rank in self.ranks) else self.steps[:-1]

    @property
    def weights(self) -> list[Weights]:
        """The weights before each step, and at the end."""
        end = self.ranks[0].end
        return [step.before for step in self.steps] + ([end] if end else [])

    def position(self, weights: Weights, most: float = 0.0) -> int | None:
        """After how many steps it had these weights, up to ``most``; None if it never did."""
        known = self.weights
        if weights in known:
            return known.index(weights)
        gaps = [largest_difference(weights, own)[0] for own in known] if most else []
        return min(
            (n for n, gap in enumerate(gaps) if gap <= most), key=gaps.__getitem__, default=None
        )

    def began(self, other: RunStart, most: float = 0.0) -> list[int | None]:
        """After how many steps of this run each rank of another start began, if it did.

        If a rank has no samples in a step and leaves it out, it begins with the next one.
        """
        at = [self.position(rank.first, most) for rank in other.ranks if rank.first]
        low, steps = min((n or 0 for n in at), default=0), self.steps
        small = {n for n, step in enumerate(steps) if len(step.samples) < len(other.ranks)}
        if len(self.ranks) == len(other.ranks):
            taken = [{str(step.before) for step in rank.steps} for rank in self.ranks]
            small |= {
                n
                for n, step in enumerate(steps)
                if not all(str(step.before) in of for of in taken)
            }
        return [low if n and small.issuperset(range(low, n)) else n for n in at]

    def steps_with(self, number: int, samples: list[int]) -> set[int]:
        """The steps, from 0, in which a rank of this run trained these samples."""
        known = self.weights
        steps = self.ranks[number].steps
        return {known.index(step.before) for step in steps if step.samples == samples}


def start_of(reports: Sequence[RankReport], run: str) -> RunStart:
    """The last start in ``run``, on those ranks that got there."""
    return RunStart([start for report in reports if (start := rank_start(report, run))])


def rank_start(report: RankReport, run: str) -> RankStart | None:
    """One rank's last start in ``run``; None if there was none."""
    starts = [n for n, event in enumerate(report.events) if event["kind"] == "started"]
    starts = [n for n in starts if report.events[n]["run"] == run]
    if not starts:
        return None
    steps: list[RunStep] = []
    passes = updates = 0
    end: Weights = {}
    for event in report.events[starts[-1] + 1 :]:
        if event["kind"] == "ended":
            end = event["weights"]
            break
        updates += event["kind"] == "optimizer_step"
        if event["kind"] == "pass":
            passes += 1
            if not steps or steps[-1].before != event["weights"]:
                steps.append(RunStep(event["weights"], []))
            steps[-1].samples.extend(event["samples"])
    return RankStart(report.events[starts[-1]]["weights"], steps, passes, updates, end)

"""Is each start after a kill the uninterrupted run, even on another number of ranks?

Read from what ``observe.saves`` records. ``steps`` compares the steps; this module tells it
which step a start resumed after, and which steps a rank without samples has left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.steps import (
    Steps,
    epoch_coverage,
    failed_restart,
    resumption_findings,
    starts_of,
    states_of,
    weights_by_step,
)
from rehearsal.kit.judge.weights import Weights, largest_difference

NEWEST = "a restart resumes from the newest checkpoint"
FINDINGS = FindingTable(
    {
        "same-order": (
            "two epochs have the same order, or one isn't shuffled",
            "each epoch has its own shuffled order",
            "at what an epoch's order is made from",
        ),
        "no-save-when-due": (
            "no checkpoint is saved after checkpoint_every steps",
            "a checkpoint is saved whenever one is due",
            "at when a checkpoint is saved, and at what is counted until then",
        ),
        "not-the-newest": (
            "a restart doesn't resume from the newest checkpoint that was due",
            NEWEST,
            "at what the folder holds at each moment of a save, and at which file is read",
        ),
        "starts-over": (
            "a restart trains from the initial weights although there is a checkpoint",
            NEWEST,
            "at what the restart finds in the folder, and what it does with it",
        ),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun(Steps):
    """A run whose steps have ``global_batch_size`` samples; an epoch's last has the rest."""

    world_size: int
    global_batch_size: int
    lr: float
    saves_epochs: bool = False  # a checkpoint is due at each epoch's end, too
    tolerance: float = 0.0  # of a restart's weights; 0 asks for the same bits

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``train`` is called with, by name."""
        return {
            "epochs": self.epochs,
            "global_batch_size": self.global_batch_size,
            "checkpoint_every": self.every,
            "lr": self.lr,
        }

    def dues(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        ends = self.steps_per_epoch if self.saves_epochs else self.every
        steps = range(1, self.total + 1)
        return [step for step in steps if step % self.every == 0 or step % ends == 0]

    def newest(self, done: int) -> int:
        """The last step up to ``done`` after which a checkpoint is due; 0 if there is none."""
        return max([0, *(due for due in self.dues() if due <= done)])

    def size_of(self, step: int) -> int:
        """Samples of a step, counted from 0, on all ranks together."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)


class Kill(NamedTuple):
    """How a start ended, and the step whose checkpoint must have been complete by then."""

    how: str
    saved: int


# ---------------------------------------------------------------- an uninterrupted run


def wrong_sizes(run: SavedRun, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a step has more or fewer samples than planned."""
    for number, samples in enumerate(samples_by_step(reports)):
        if len(samples) != run.size_of(number):
            found = f"on {counted(len(reports), 'rank')}, without a restart, step {number + 1} "
            found += f"trained {counted(len(samples), 'sample')}; {run.size_of(number)} were "
            found += f"its share of {run.num_samples} with "
            found += f"global_batch_size={run.global_batch_size}"
            rule = "a step trains the next global_batch_size samples of its epoch"
            look = "at how an epoch is cut into batches, and each of them among the ranks"
            yield Finding("not-all-steps", found, rule, look)
            return


def repeated_order(run: SavedRun, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if an epoch is in index order, or in that of an earlier epoch."""
    steps, length = samples_by_step(reports), run.steps_per_epoch
    indices = range(run.num_samples)
    size = run.global_batch_size
    seen = [[[*indices[at : at + size]] for at in indices[::size]]]
    for epoch in range(run.epochs):
        own = steps[epoch * length : (epoch + 1) * length]
        if own in seen:
            same = seen.index(own)
            found = f"without a restart, epoch {epoch} trained the batches of "
            found += f"epoch {same - 1}, in its order" if same else "the order of the indices"
            yield FINDINGS("same-order", found)
            return
        seen.append(own)


# ---------------------------------------------------------------- restarts


def saved_by(run: SavedRun, whole: Sequence[RankReport], done: int) -> int:
    """The step whose checkpoint must be complete once ``done`` steps are."""
    in_thread = any(report.answer["in_thread"] for report in whole)
    newest = run.newest(done)
    return run.newest(newest - 1) if in_thread else newest  # it may still be writing


def kills_in_saves(run: SavedRun, whole: Sequence[RankReport]) -> Iterator[tuple[str, Kill]]:
    """The folder and the kill of each moment that ``keeping_saves`` has kept."""
    for report in whole:
        for folder, where, done in report.answer["moments"]:
            how = f"all ranks were killed {where}, after {counted(done, 'step')}"
            yield folder, Kill(how, saved_by(run, whole, done - 1))


def first_wrong_start(
    run: SavedRun,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    kills: Iterable[tuple[str, Kill]],
    judge_start: Callable[[Sequence[RankReport], Kill], Iterable[Finding]],
) -> Iterator[Finding]:
    """What is wrong with the first start of a job that is.

    Args:
        kills: for each start its folder, and how the previous start in it ended.
        judge_start: given the start's reports, ``aligned``, and the kill.
    """
    by_rank, states = [starts_of(report) for report in reports], states_of(whole)
    for folder, kill in kills:
        starts = [own[folder] for own in by_rank if folder in own]
        if len(starts) < len(reports):
            return  # the engine says why
        if len(starts) != len(whole):
            kill = kill._replace(
                how=f"{kill.how}, and started again on {counted(len(starts), 'rank')}"
            )
        has_ended = all(start.answer for start in starts)
        findings = list(
            first_of(
                judge_start(aligned(run, starts, states), kill),
                () if has_ended else failed_restart(reports, kill.how),
            )
        )
        yield from findings[:1]
        if findings or not has_ended:
            return


def start_after_kill(
    run: SavedRun,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    kill: Kill,
    look: str,
) -> Iterator[Finding]:
    """What is wrong with a start; both runs are ``aligned``.

    Args:
        look: where to look if samples are repeated or skipped.
    """
    at = resumed_after(whole, reports)
    if at is None or at >= kill.saved:
        allowed = [kill.saved if at is None else at]
        taken = samples_by_step(whole)[:at] + samples_by_step(reports)
        where = f"{kill.how}; the restart took no step after step {at}, so "
        yield from first_of(
            epoch_coverage(run, taken, where, look) if len(taken) == at else (),
            resumption_findings(run, whole, reports, allowed, kill.how, look),
        )
        return
    began = f"{kill.how}; the restart began with the weights after step {at}"
    if at == 0:
        began = f"{kill.how}; the restart began with the initial weights"
    due = next(due for due in run.dues() if due > at)
    if any(due in report.answer["saved"] for report in whole):
        found = f"{began}, although the checkpoint of step {kill.saved} was complete"
        yield FINDINGS("not-the-newest" if at else "starts-over", found)
    else:
        found = f"{began}. With checkpoint_every={run.every} and {run.steps_per_epoch} steps "
        found += f"per epoch, a checkpoint is due after step {due}; no file was written then"
        yield FINDINGS("no-save-when-due", found)


def resumed_after(whole: Sequence[RankReport], reports: Sequence[RankReport]) -> int | None:
    """The step with whose weights all ranks began; None if there is none."""
    states = states_of(whole)
    begun = [own[0] for report in reports if (own := weights_by_step(report))]
    first = begun or [report.answer["weights"] for report in reports if report.answer]
    is_one = bool(first) and all(own == first[0] for own in first)
    return states.index(first[0]) if is_one and first[0] in states else None


# ---------------------------------------------------------------- ranks without samples


class _RankStep(NamedTuple):
    """One step of one rank."""

    before: Weights | None  # None if it had no forward pass
    samples: list[int]
    is_complete: bool = True


def aligned(
    run: SavedRun, reports: Sequence[RankReport], states: Sequence[Weights] = ()
) -> list[RankReport]:
    """The reports with each step on each rank.

    A rank without samples may leave out a step's forward pass, and then nothing shows an update
    that is written out. Weights within the run's tolerance of one of ``states`` become it.
    """
    near = _nearest_in(states, run.tolerance)
    by_rank = [
        [step._replace(before=step.before and near(step.before)) for step in _steps_of(report)]
        for report in reports
    ]
    longest = max(by_rank, key=lambda own: sum(step.before is not None for step in own))
    begun = [step.before for step in longest]
    return [
        _report_of(report, _with_all(begun, own, has_ended=report.answer is not None), near)
        for report, own in zip(reports, by_rank, strict=True)
    ]


def _nearest_in(states: Sequence[Weights], most: float) -> Callable[[Weights], Weights]:
    """A function from weights to the state that they equal up to ``most``, or else itself."""
    at = 0  # the last one found: a run goes from state to state

    def near(weights: Weights) -> Weights:
        nonlocal at
        if most and weights not in states:
            for number in chain(range(at, len(states)), range(at)):
                if largest_difference(weights, states[number])[0] <= most:
                    at = number
                    return states[number]
        return weights

    return near


def _steps_of(report: RankReport) -> list[_RankStep]:
    """The steps of one rank, as far as they were recorded."""
    steps: list[_RankStep] = []
    before: Weights | None = None
    samples: list[int] = []
    for event in report.events:
        if event["kind"] == "step_begins":
            before = before or event["weights"]
        elif event["kind"] == "forward":
            samples = samples + event["samples"]
        elif event["kind"] == "optimizer_step":
            steps.append(_RankStep(before, samples))
            before, samples = None, []
    return steps + [_RankStep(before, samples, is_complete=False)] * (before is not None)


def _with_all(
    begun: Sequence[Weights | None], own: Sequence[_RankStep], *, has_ended: bool
) -> list[_RankStep]:
    """The steps of a rank, with those that it has left out."""
    steps: list[_RankStep] = []
    rest = [*own]
    for number, before in enumerate(begun):
        known = rest[0].before if rest else None
        is_later = known is not None and known != before and known in begun[number + 1 :]
        if is_later or (has_ended and not rest):
            steps.append(_RankStep(before, []))
        elif rest:
            step = rest.pop(0)
            steps.append(step._replace(before=step.before or before))
    return steps + rest


def _report_of(
    report: RankReport, steps: Iterable[_RankStep], near: Callable[[Weights], Weights]
) -> RankReport:
    """A report with these steps instead of its own."""
    events: list[dict[str, object]] = []
    for step in steps:
        events += [
            {"kind": "step_begins", "weights": step.before},
            {"kind": "forward", "samples": step.samples},
        ]
        events += [{"kind": "optimizer_step"}] * step.is_complete
    answer = report.answer and {**report.answer, "weights": near(report.answer["weights"])}
    return replace(report, events=events, answer=answer)

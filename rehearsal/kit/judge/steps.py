"""Did each step of a run do what it should, and does a restart take the same steps?

Read from what ``observe.steps`` records: samples and weights of every step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, FindingTable, counted, is_echo, shortened
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.coverage import how_often, miscounted, most_steps, samples_by_step
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.restart import EACH_EPOCH_ONCE, EPOCH_BOUNDS
from rehearsal.kit.judge.weights import (
    Weights,
    largest_difference,
    numbers,
    ranks_differ,
    weights_differ,
)

NEWEST = "a restart resumes from the newest checkpoint"
RESUMED = FindingTable(
    {
        "starts-over": (
            "a restart trains from the initial weights although there is a checkpoint",
            NEWEST,
            "at what the restart finds in the folder, and what it does with it",
        ),
        "not-the-newest": (
            "a restart doesn't resume from the newest checkpoint that was due",
            NEWEST,
            "at the steps after which a checkpoint is saved, at what the folder holds at each "
            "moment of a save, and at which file is read",
        ),
    }
)
# What the findings below may say. A grader's CODES are these and its own.
CODES = {
    **RESUMED.codes,
    "not-all-steps": "an uninterrupted run doesn't take the planned number of steps",
    "never-trained": "a sample is left out of an epoch, with or without a restart",
    "trained-twice": "a sample is trained more than once in an epoch",
    "ranks-differ": "the ranks end with different weights",
    "wrong-start": "training doesn't start from rank 0's weights",
    "different-update": "a step doesn't follow the mean over its samples, as it did before",
    "cannot-resume": "a restart fails on the files that a killed run left",
    "not-the-same-run": "a restarted run differs from an uninterrupted one",
}
ONCE = "each epoch trains each sample exactly once, across all ranks and restarts"
# Of a float32 update; a wrong mean, rate or momentum is off by far more.
TOLERANCE = 1e-5
Gradient = Callable[[int, Weights], Mapping[str, Sequence[float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of a run, and after which of them a checkpoint is due."""

    num_samples: int
    epochs: int
    steps_per_epoch: int
    every: int
    tolerance: float = 0.0  # of a restart's weights; 0 asks for the same bits

    @property
    def total(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def dues(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        return [*range(self.every, self.total + 1, self.every)]

    def newest(self, done: int) -> int:
        """The last step up to ``done`` after which a checkpoint is due; 0 if there is none."""
        return max([0, *(due for due in self.dues() if due <= done)])


def weights_by_step(report: RankReport) -> list[Weights]:
    """The weights with which each of a rank's steps began."""
    begun: list[Weights] = []
    is_new = True
    for event in report.events:
        if event["kind"] == "step_begins" and is_new:
            begun.append(event["weights"])
            is_new = False
        elif event["kind"] == "optimizer_step":
            is_new = True
    return begun


# ---------------------------------------------------------------- an uninterrupted run


def whole_findings(
    plan: Steps,
    reports: Sequence[RankReport],
    gradient_of: Callable[[Sequence[RankReport]], Gradient],
    lr: float,
) -> Iterator[Finding]:
    """What is wrong with an uninterrupted run.

    Args:
        gradient_of: makes of the reports, ``aligned``, a function from a step, counted from 0,
            and its weights to the gradient of the mean loss over its samples.
        lr: the rate of its SGD, which has a momentum of 0.9.
    """
    reports = aligned(reports)
    where = f"on {counted(len(reports), 'rank')}, without a restart, "
    yield from first_of(
        step_count_findings(plan, reports, where),
        epoch_coverage(plan, samples_by_step(reports), where, EPOCH_BOUNDS),
        first_weight_findings(reports, where),
        sgd_findings(reports, gradient_of(reports), lr, where),
        ranks_differ(
            [report.answer["weights"] for report in reports],
            "at the gradient of each update: is it the same on all ranks?",
            most=0.0,
            where=where,
        ),
    )


def step_count_findings(
    plan: Steps, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if the run took more or fewer steps than its epochs have."""
    taken = most_steps(reports)
    if taken == plan.total:
        return
    found = f"{where}the run took {counted(taken, 'optimizer step')}; {plan.epochs} epochs of "
    found += f"{plan.steps_per_epoch} steps are {plan.total}"
    rule, look = EACH_EPOCH_ONCE, EPOCH_BOUNDS
    trained = Counter(chain(*samples_by_step(reports)))
    if trained == Counter([*range(plan.num_samples)] * plan.epochs):
        found += ". Each sample was trained once per epoch"
        rule = "each batch gets one optimizer step"
        look = "at where the optimizer steps, and at how many samples are in a batch"
    yield Finding("not-all-steps", found, rule, look)


def epoch_coverage(
    plan: Steps, steps: Sequence[Sequence[int]], where: str, look: str
) -> Iterator[Finding]:
    """A finding if an epoch of a run, over all its attempts, misses or repeats samples."""
    bounds = [*range(0, plan.total, plan.steps_per_epoch), len(steps)]
    # First in total: what repeats an epoch shifts the rest.
    parts = [(counted(plan.epochs, "epoch"), plan.epochs, chain(*steps))]
    parts += [
        (f"epoch {number}", 1, chain(*steps[first:last]))
        for number, (first, last) in enumerate(pairwise(bounds))
    ]
    for within, times, samples in parts:
        extra, missing = miscounted(samples, plan.num_samples, times)
        if missing or extra:
            found = where + how_often(
                [] if missing else extra, missing, plan.num_samples, times, within=within
            )
            code = "never-trained" if missing else "trained-twice"
            yield Finding(code, found, ONCE, look)
            return


def one_order(
    plan: Steps, reports: Sequence[RankReport], code: str, where: str = "without a restart, "
) -> Iterator[Finding]:
    """A finding if two epochs trained the samples in the same order."""
    steps, length = samples_by_step(reports), plan.steps_per_epoch
    epochs = [steps[first : first + length] for first in range(0, plan.total, length)]
    for (first, one), (second, other) in combinations(enumerate(epochs), 2):
        if one == other:
            yield Finding(
                code,
                f"{where}epochs {first} and {second} trained the samples in the same order",
                "each epoch has its own order",
                "at the seed of the order, and at what changes it",
            )
            return


def first_weight_findings(reports: Sequence[RankReport], where: str) -> Iterator[Finding]:
    """A finding if the first step didn't begin with the weights that rank 0 was given."""
    given = reports[0].answer["given"]
    look = "at whose weights are sent, which of them, and when"
    begun = [weights_by_step(report) for report in reports]
    if all(begun):
        yield from ranks_differ(
            [own[0] for own in begun], look, most=0.0, where=f"{where}before step 1, "
        )
        yield from weights_differ(
            "wrong-start",
            f"{where}the weights before step 1 and those that rank 0 was given differ",
            begun[0][0],
            given,
            1e-6,
            "training starts from rank 0's weights, on every rank",
            look,
        )


def sgd_findings(
    reports: Sequence[RankReport], gradient: Gradient, lr: float, where: str
) -> Iterator[Finding]:
    """A finding at the first step whose update isn't SGD's with a momentum of 0.9."""
    states = [*weights_by_step(reports[0]), reports[0].answer["weights"]]
    sizes = [len(samples) for samples in samples_by_step(reports)]
    speeds: dict[str, list[float]] = {}
    for step, (before, after) in enumerate(pairwise(states)):
        updates: list[tuple[float, float]] = []  # what it was, what it should be
        old = {name: numbers(text) for name, text in before.items()}
        new = {name: numbers(text) for name, text in after.items()}
        for name, grad in gradient(step, before).items():
            speed = speeds.setdefault(name, [0.0] * len(grad))
            speed[:] = [0.9 * v + g for v, g in zip(speed, grad, strict=True)]
            updates += [
                (b - a, -lr * v) for a, b, v in zip(old[name], new[name], speed, strict=True)
            ]
        unmoved = [name for name in old if name not in speeds and old[name] != new[name]]
        off = [abs(is_ - should) for is_, should in updates]
        if all(difference <= TOLERANCE for difference in off) and not unmoved:  # no NaN either
            continue
        if unmoved:
            found = f"{where}step {step + 1} changed {unmoved[0]}, which has no gradient"
        else:
            found = f"{where}the update of step {step + 1} "
            if all(map(math.isfinite, off)):
                found += f"is off by up to {max(off):.2g} from "
            else:
                found += "has NaNs or infinities; it should be "
            found += f"SGD's with lr={lr:.4g} and a momentum of 0.9, on the mean over the "
            found += f"step's {counted(sizes[step], 'sample')}{factor_of(updates)}"
            if step:
                found += f". It's the first one that's off, after {counted(step, 'right step')}"
        yield Finding(
            "different-update",
            found,
            "a step follows the mean loss over all its samples, on all ranks; every sample "
            "weighs the same",
            "at what is in the gradient, what it is divided by, and what the optimizer does",
        )
        return


def factor_of(updates: Sequence[tuple[float, float]]) -> str:
    """How a wrong update relates to the right one, if it has the same direction."""
    if not any(is_ for is_, _ in updates):
        return ": no weight moved"
    if not all(math.isfinite(is_) for is_, _ in updates):
        return ""
    square = sum(should * should for _, should in updates)
    factor = sum(is_ * should for is_, should in updates) / square if square else 0.0
    if all(abs(is_ - factor * should) <= TOLERANCE for is_, should in updates):
        return f"; it's {factor:.3g} times that update"
    return "; it points in a different direction"


# ---------------------------------------------------------------- restarts


def states_of(whole: Sequence[RankReport]) -> list[Weights]:
    """The weights before each step of an uninterrupted run, and those at its end."""
    return [*weights_by_step(whole[0]), whole[0].answer["weights"]]


def resumption_findings(
    plan: Steps,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    allowed: Sequence[int],
    kill: str,
    look: str,
) -> Iterator[Finding]:
    """What is wrong with a start after a kill, compared with the uninterrupted run.

    Args:
        whole, reports: with the "weights" of each rank at the end, or none if it was killed.
        allowed: the steps whose checkpoint may be the newest one, the last one first.
        kill: how the previous start ended, as in "the run was killed after step 3".
        look: where to look if samples are repeated or skipped.
    """
    whole = aligned(whole)
    states = states_of(whole)
    reports = aligned(reports, states, plan.tolerance)
    begun = {report.rank: own[0] for report in reports if (own := weights_by_step(report))}
    ends = {report.rank: report.answer["weights"] for report in reports if report.answer}
    first = begun or ends  # a run that was finished takes no step
    if not first:
        return  # killed before its first step
    agreed = next(iter(first.values()))
    for rank, weights in first.items():
        if weights != agreed:
            yield from ranks_differ(
                [*first.values()],
                "at what each rank restores, and who decides it",
                most=0.0,
                where=f"{kill}; at the next start, ",
                ranks=[*first],
            )
            return
        start = states.index(weights) if weights in states else None
        if start in allowed and not (start == 0 and not begun):
            continue
        if start is None:
            difference, name = largest_difference(weights, states[allowed[0]])
            found = f"{kill}; rank {rank} began with weights that the uninterrupted run never "
            found += f"had: they differ by up to {difference:.2g}, in {name}, from those after "
            found += f"step {allowed[0]}"
            rule = "a restart restores everything that later steps depend on, on every rank"
            where = "at everything that is saved, and at which ranks restore it"
            yield Finding("not-the-same-run", found, rule, where)
        else:
            began = f"the weights after step {start}" if start else "the initial weights"
            found = f"{kill}; the next start began with {began}. With "
            found += f"checkpoint_every={plan.every}, {newest_of(allowed)}"
            yield RESUMED("not-the-newest" if start else "starts-over", found)
        return
    start = states.index(agreed) if begun else plan.total
    where = f"{kill}; restarted from step {start}'s checkpoint, "
    wanted, taken = samples_by_step(whole), samples_by_step(reports)
    was_killed = len(ends) < len(reports)
    yield from first_of(
        other_step(plan, wanted, taken[:-1], start, where, look) if was_killed else (),
        () if was_killed else epoch_coverage(plan, [*wanted[:start], *taken], where, look),
        same_steps(whole, reports, states, start, where),
    )


def newest_of(allowed: Sequence[int]) -> str:
    """Which checkpoint is the newest, if it may be that of each of these steps; 0 is none."""
    newest, *others = allowed
    if not newest:
        return "no checkpoint is due by then"
    found = f"the newest checkpoint is that of step {newest}"
    if others:
        other = f"of step {others[0]}" if others[0] else "there is none"
        found += f", or {other} if the save of step {newest} wasn't complete"
    return found


def other_step(
    plan: Steps,
    wanted: Sequence[Sequence[int]],
    taken: Sequence[Sequence[int]],
    start: int,
    where: str,
    look: str,
) -> Iterator[Finding]:
    """A finding at the first step of a killed restart that trained other samples."""
    for step, samples in enumerate(taken, start):
        if step < plan.total and samples == wanted[step]:
            continue
        epoch = step // plan.steps_per_epoch * plan.steps_per_epoch
        again = set(samples) & set(chain(*wanted[epoch:step]))
        if samples in wanted[step:]:  # it skipped the steps before
            again = set()
        found = f"{where}step {step + 1} trained samples {some(samples)}; "
        if again:
            found += f"{some(sorted(again))} had been trained in this epoch before"
        else:
            found += f"in the uninterrupted run, it trained {some([*wanted, []][step])}"
        yield Finding("trained-twice" if again else "never-trained", found, ONCE, look)
        return


def same_steps(
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    states: Sequence[Weights],
    start: int,
    where: str,
) -> Iterator[Finding]:
    """A finding at the first weights that differ from the uninterrupted run's."""
    wanted, taken = samples_by_step(whole), samples_by_step(reports)
    for report in reports:
        own = weights_by_step(report)
        own += [report.answer["weights"]] if report.answer else []
        for step, (ours, theirs) in enumerate(zip(own, states[start:], strict=False), start):
            if ours == theirs:
                continue
            difference, name = largest_difference(ours, theirs)
            found = f"{where}rank {report.rank}'s weights after step {step} differ by up to "
            found += f"{difference:.2g}, in {name}, from the uninterrupted run's"
            at = step - 1 - start
            if 0 <= at < len(taken) and taken[at] != wanted[step - 1]:
                found += (
                    f". Step {step} trained samples {some(taken[at])}; in the uninterrupted "
                )
                found += f"run, it trained {some(wanted[step - 1])}"
            yield Finding(
                "not-the-same-run",
                found,
                "a restart restores everything that later steps depend on, on every rank",
                "at everything that is saved, and at which ranks restore it",
            )
            return


def failed_restart(reports: Sequence[RankReport], kill: str) -> Iterator[Finding]:
    """A finding if a restart failed with an exception; a hang is reported by the engine."""
    failed = [report for report in reports if report.failure and not is_echo(report)]
    if failed and (failure := failed[0].failure):
        yield Finding(
            "cannot-resume",
            f"{kill}; then the restart failed on rank {failed[0].rank} with {failure.kind}: "
            f"{shortened(failure.message.split('. ')[0], 120)}",
            "a kill costs at most the steps since the last checkpoint: each restart finds an "
            "intact checkpoint, or none",
            "at which files are in the folder, under which names, at each moment of a save",
        )


def starts_of(report: RankReport) -> dict[str, RankReport]:
    """Each start of a job that makes several, as a report of its own, by its folder."""
    starts: dict[str, RankReport] = {}
    at = 0
    for number, event in enumerate(report.events):
        if event["kind"] == "restarted":
            at, name = number, event["folder"]
            starts[name] = replace(report, events=report.events[at:], answer=None)
        elif event["kind"] == "ended":
            own = report.events[at:number]
            starts[name] = replace(report, events=own, answer=event["answer"])
    return starts

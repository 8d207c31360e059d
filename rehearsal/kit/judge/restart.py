"""Did a run that was killed and resumed train each sample once, and end with the right weights?

It judges the lineage: the steps of each killed attempt up to the checkpoint that the next one
resumed from, then those of the last attempt. ``lineage`` compares every step instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.verdict import Finding, Judge, counted
from rehearsal.kit.judge.coverage import how_often, miscounted, most_steps, samples_by_step
from rehearsal.kit.judge.weights import Weights, ranks_differ, weights_differ, weights_of_ranks

# What the findings below may say. A grader's CODES are these and its own.
CODES = {
    "not-all-steps": "an uninterrupted run does not take the planned number of steps",
    "ranks-differ": "the ranks end with different weights",
    "starts-over": "a restart trains from the initial weights although there is a checkpoint",
    "never-trained": "a sample is left out",
    "trained-twice": "a sample is trained more than once per epoch",
    "not-the-same-run": "a restarted run ends with different weights than an uninterrupted one",
}
EACH_EPOCH_ONCE = "each epoch is trained once, from its first step to its last"
EPOCH_BOUNDS = "at where an epoch begins and ends, and at which of its samples a rank takes"


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPlan:
    """How many samples and steps a run has."""

    num_samples: int
    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch


def judge_whole(plan: RestartPlan) -> Judge:
    """The judge of an uninterrupted run."""

    def judge(reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
        taken = most_steps(reports)
        where = f"on {counted(len(reports), 'rank')}, without a restart, "
        if taken != plan.steps:
            found = f"{where}the run took {counted(taken, 'optimizer step')}; {plan.epochs} "
            found += f"epochs of {plan.steps_per_epoch} steps are {plan.steps}"
            rule, look = EACH_EPOCH_ONCE, EPOCH_BOUNDS
            trained = list(chain(*samples_by_step(reports)))
            if not any(miscounted(trained, plan.num_samples, plan.epochs)):
                found += ". Each sample was trained once per epoch"
                rule = "each batch gets one optimizer step"
                look = "at where the optimizer steps, and at how many samples are in a batch"
            yield Finding("not-all-steps", found, rule, look)
            return
        yield from lineage_findings(plan, samples_by_step(reports), where, EPOCH_BOUNDS)
        if first_weights(reports) == weights_of_ranks(reports):
            found = f"{where}no weight moved in {counted(taken, 'optimizer step')}"
            look = "at how a gradient gets from the loss to the optimizer, and what clears it"
            yield Finding("not-all-steps", found, "each batch changes the weights", look)
            return
        look = "at the weights with which each rank begins, and at what its updates use"
        yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=where)

    return judge


def judge_killed(reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """A finding if the kill of this job never came: the run did not get that far."""
    if not any(killed(report) for report in reports):
        found = f"the run ended after {counted(most_steps(reports), 'optimizer step')}, before "
        found += "the step in which it was going to be killed"
        yield Finding("not-all-steps", found, EACH_EPOCH_ONCE, "at what ends the loops")


def judge_restart(
    plan: RestartPlan,
    whole: str,
    look: str,
    attempts: Mapping[str, int],
    *,
    tolerance: float = 0.0,
) -> Judge:
    """The judge of the attempt that ran to the end after others had been killed.

    Args:
        whole: the scenario of the same run without a restart; "" to leave the weights out.
        attempts: the scenarios before, and how many steps of each survive.
        tolerance: for weights; 0 asks for the same bits.
    """

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        start, taken = sum(attempts.values()), most_steps(reports)
        when = (
            f"after the save due at step {start}"
            if start
            else "before the first save was complete"
        )
        where = f"on {counted(len(reports), 'rank')}, restarted {when}, "
        began = first_weights(reports)
        fresh = first_weights(earlier[next(iter(attempts))])
        # There may be more ranks than in the killed job: match any of its initial weights.
        if start and taken == plan.steps and began and all(own in fresh for own in began):
            found = f"{where}the run took all {taken} optimizer steps, from the initial "
            found += "weights on"
            rule = "a restart resumes from the newest intact checkpoint"
            where_to_look = "at what the restart finds in the folder, and what it does with it"
            yield Finding("starts-over", found, rule, where_to_look)
            return
        steps = surviving_steps(attempts, reports, earlier)
        when += " (a killed run's later steps don't count)" * (start > 0)
        lineage = f"on {counted(len(reports), 'rank')}, restarted {when}, "
        findings = list(lineage_findings(plan, steps, lineage, look))
        yield from findings
        if findings or not whole:
            return
        weights = earlier[whole][0].answer["weights"]
        for report in reports:
            findings = list(
                weights_differ(
                    "not-the-same-run",
                    f"{where}rank {report.rank}'s weights differ from the uninterrupted run's",
                    report.answer["weights"],
                    weights,
                    tolerance,
                    "a restart restores everything that later steps depend on, on every rank",
                    "at everything that is saved, and at which ranks restore it",
                )
            )
            yield from findings
            if findings:
                return

    return judge


def first_weights(reports: Sequence[RankReport]) -> list[Weights]:
    """The weights with which each rank began to train; none for a rank that did not."""
    return [event["weights"] for report in reports for event in report.of("first_forward")]


def surviving_steps(
    attempts: Mapping[str, int],
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> list[list[int]]:
    """The samples of each step of the lineage."""
    before = [samples_by_step(earlier[name])[:count] for name, count in attempts.items()]
    return [*chain(*before), *samples_by_step(reports)]


def lineage_findings(
    plan: RestartPlan, steps: Sequence[Sequence[int]], where: str, look: str
) -> Iterator[Finding]:
    """A finding if a run's steps did not train each sample once per epoch."""
    extra, missing = miscounted(chain(*steps), plan.num_samples, plan.epochs)
    if missing or extra:
        too_often = [] if missing else extra
        found = where + how_often(too_often, missing, plan.num_samples, plan.epochs)
        rule = "each epoch trains each sample exactly once, across all ranks and restarts"
        yield Finding("never-trained" if missing else "trained-twice", found, rule, look)

"""An uninterrupted run; one that is killed, and its restart with other micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import marked_samples, watch_samples, weights_of
from rehearsal.kit.observe.updates import UpdateWatch

from .runs import RunPlan, expected, plan_of, plans_alone, scaled_net

CODES = {
    "wrong-steps": "a call takes more or fewer steps than the run has left",
    "starts-over": "a restart trains from step 1 although there is a checkpoint",
    "wrong-micro-batches": "a forward pass has more samples than micro_batch_size",
    "wrong-list": "train doesn't return one rate for each step of the call",
    "warmup-too-long": "the rate still rises after the warmup's last step",
    "warmup-too-short": "the rate stops rising before the warmup's last step",
    "decays-too-fast": "after the warmup, the rate is lower than it should be",
    "rate-too-high": "after the warmup, the rate is higher than it should be",
    "rate-jumps": "after a restart, the rate is not the one that step had before",
    "ranks-differ": "the ranks end with different weights",
    "not-the-same-run": "the rates are right, but the weights are not",
}
TOLERANCE = 5e-5  # against a sum in another order; a wrong rate is off by far more
RULE = "the rate depends on the step of the run and on nothing else"


def body(
    context: RankContext, learner: SimpleNamespace, *, plan: RunPlan, run: str, size: int
) -> dict[str, Any]:
    """Train in the folder of ``run``, or resume there, in micro-batches of ``size``."""
    context.init_group()
    list_backward()
    net = scaled_net(seed=context.rank)
    updates = UpdateWatch(context, net)
    watch_samples(context, net)
    rates = learner.train(
        net,
        *marked_samples(plan.num_samples),
        folder=run_folder(context, run),
        **plan.settings(size),
    )
    updates.end()
    return {
        "weights": weights_of(net),
        "rates": [(int(step), float(rate)) for step, rate in rates],
        "expected": expected(plan) if context.rank == 0 else None,
    }


def alone(
    context: RankContext, learner: SimpleNamespace, *, plans: Sequence[RunPlan]
) -> list[dict[str, Any]]:
    """On one rank: both runs, and the first of them called again."""
    context.init_group()
    list_backward()
    answers = list[dict[str, Any]]()
    for number, is_again in ((0, False), (1, False), (0, True)):
        plan, net = plans[number], scaled_net(seed=int(is_again))
        size = plan.later_micro_batch_size if is_again else plan.micro_batch_size
        rates = learner.train(
            net,
            *marked_samples(plan.num_samples),
            folder=run_folder(context, f"alone-{number}"),
            **plan.settings(size),
        )
        answers.append(
            {
                "weights": weights_of(net),
                "rates": [(int(step), float(rate)) for step, rate in rates],
                "expected": expected(plan),
            }
        )
    return answers


def judge_alone(
    reports: Sequence[RankReport], earlier: object, *, plans: Sequence[RunPlan]
) -> Iterator[Finding]:
    """The results of each call. The last one may train only what came after the last save."""
    for number, answer in zip((0, 1, 0), reports[0].answer, strict=True):
        plan, start, where = plans[number], 0, "on one rank, "
        if answer is reports[0].answer[-1]:
            first = answer["rates"][0][0] if answer["rates"] else plan.steps + 1
            start = max(plan.start, first - 1)  # it may have saved more often
            where += f"called again after its last step, with a save due at step {plan.start}, "
            if first <= plan.start:
                found = f"{where}it began with step {first}"
                rule = "a restart resumes from the newest checkpoint"
                yield Finding("starts-over", found, rule, "at who saves, what and when")
        yield from result_findings([replace(reports[0], answer=answer)], plan, start, where)


def judge(
    reports: Sequence[RankReport], earlier: object, *, plan: RunPlan, start: int, size: int
) -> Iterator[Finding]:
    """Steps, rates, weights: each explains the next."""
    where = f"on {counted(len(reports), 'rank')}, "
    where += f"restarted after the save due at step {start}, " if start else "uninterrupted, "
    left = plan.steps - start
    for report in reports:
        taken = len(report.of("stepped"))
        if taken != left:
            found = f"{where}rank {report.rank} took {counted(taken, 'optimizer step')}; "
            found += f"of {plan.steps}, {left} were left"
            code = "starts-over" if start and taken == plan.steps else "wrong-steps"
            rule = "a restart resumes from the newest checkpoint, and each batch gets one step"
            look = "at what is saved and read back, and at where the optimizer steps"
            yield Finding(code, found, rule, look)
        most = max((len(event["samples"]) for event in report.of("forward")), default=0)
        if most > size:
            found = (
                f"{where}rank {report.rank} ran {counted(most, 'sample')} through the model "
            )
            found += f"at once; micro_batch_size is {size}"
            rule = "no forward pass has more than micro_batch_size samples"
            yield Finding("wrong-micro-batches", found, rule, "at how a share is cut")
    yield from result_findings(reports, plan, start, where)


def result_findings(
    reports: Sequence[RankReport], plan: RunPlan, start: int, where: str
) -> Iterator[Finding]:
    """Rates and weights of one call."""
    for report in reports:
        yield from rate_findings(report, plan, start, where)
    look = "at the weights with which each rank begins, and at each update"
    yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=where)
    difference, name = largest_difference(
        reports[0].answer["weights"], reports[0].answer["expected"]
    )
    if not difference <= TOLERANCE:
        found = f"{where}the returned rates are right, but the weights differ by up to "
        found += f"{difference:.2g}, in {name}, from those of one process with these rates"
        rule = "each step follows the mean over its global batch, at its rate"
        look = "at the gradient, at each group's rate when the optimizer steps, and at what a "
        look += "restart brings back"
        yield Finding("not-the-same-run", found, rule, look)


def rate_findings(
    report: RankReport, plan: RunPlan, start: int, where: str
) -> Iterator[Finding]:
    """Findings about the rates that one rank returned."""
    rates = report.answer["rates"]
    steps, due = [step for step, _ in rates], list(range(start + 1, plan.steps + 1))
    if steps != due:
        found = (
            f"{where}rank {report.rank} returned the rates of steps {some(steps) or 'none'} "
        )
        found += f"({len(steps)} in total); the call took steps {due[0]} to {due[-1]}"
        rule = "on every rank, train returns (step, rate) for each step of this call"
        yield Finding("wrong-list", found, rule, "at when an entry is added")
        return
    # A rate that runs out says more than a warmup that is a little off before it.
    starved = [
        (step, rate)
        for step, rate in rates
        if step > plan.warmup_steps and rate < plan.rate(step) / 2
    ]
    if (
        not start
        and len(starved) > 2
        and max(rate for _, rate in rates[starved[0][0] :]) < plan.lr / 2
    ):
        yield too_fast(report, plan, *starved[0], where)
        return
    for step, rate in rates:
        right = plan.rate(step)
        if math.isclose(rate, right, rel_tol=1e-6):
            continue
        code, look = "rate-jumps", "at what a restart does with the schedule"
        if not start and step <= plan.warmup_steps:
            code = "warmup-too-short" if rate > right else "warmup-too-long"
            look = "at what the warmup is counted in"
        elif not start and rate < right:
            # A warmup that goes on is lower than the decay, too, but rises.
            rises = any(b > a for (_, a), (_, b) in pairwise(rates[step - 1 :]))
            if not rises:
                yield too_fast(report, plan, step, rate, where)
                return
            code, look = "warmup-too-long", "at what the warmup is counted in"
        elif not start:
            code, look = "rate-too-high", "at the length that the schedule is given"
        yield Finding(code, f"{where}{used(report, plan, step, rate)}", RULE, look)
        return


def too_fast(report: RankReport, plan: RunPlan, step: int, rate: float, where: str) -> Finding:
    """The finding about a rate that is too low, after the warmup."""
    zeros = [at for at, other in report.answer["rates"] if not other]
    found = f"{where}{used(report, plan, step, rate)}"
    found += f". From step {zeros[0]} on, it was 0" if zeros else ""
    look = "at what counts the schedule's steps, and how often"
    return Finding("decays-too-fast", found, RULE, look)


def used(report: RankReport, plan: RunPlan, step: int, rate: float) -> str:
    """ "rank 0 used a rate of 0.1 in step 3 of 12; it should be 0.05 with ..."."""
    found = f"rank {report.rank} used a rate of {rate:.4g} in step {step} of {plan.steps}; it "
    found += f"should be {plan.rate(step):.4g} with warmup_steps={plan.warmup_steps} and "
    found += f"lr={plan.lr:g}"
    return found


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check."""
    plan, plans = plan_of(seed), plans_alone(seed)
    size, later = plan.micro_batch_size, plan.later_micro_batch_size
    return [
        Scenario(
            name="uninterrupted",
            body=partial(body, plan=plan, run="a", size=size),
            judge=only_first(partial(judge, plan=plan, start=0, size=size)),
            world_size=plan.world_size,
        ),
        Scenario(
            name="killed",
            body=partial(body, plan=plan, run="b", size=size),
            judge=judge_killed,
            world_size=plan.world_size,
            fault=Fault(rank=plan.killed_rank, at="stepped", count=plan.killed_after),
        ),
        Scenario(
            name="restarted",
            body=partial(body, plan=plan, run="b", size=later),
            judge=only_first(partial(judge, plan=plan, start=plan.start, size=later)),
            world_size=plan.world_size,
        ),
        Scenario(
            name="alone",
            body=partial(alone, plans=plans),
            judge=only_first(partial(judge_alone, plans=plans)),
            world_size=1,
        ),
    ]

"""The gradient that each step follows, against the mean over the labels of all ranks.

A job takes seven steps: uneven labels, a rank without labels, a rank without samples, a task
that nobody has measured, a single label, none at all, and uneven labels again.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted, listed
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import first_of

from .codes import TABLE
from .means import Sums, explanations, is_close, ratio
from .observed import run
from .plan import Job, jobs

CODES = TABLE.codes


def judge(job: Job, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first step that has a finding explains the rest."""
    if any(not report.has_answer for report in reports):
        return first_of(paired_findings(reports), mismatched_collectives(reports))
    return first_of(*(step_findings(job, reports, at) for at in range(len(job.steps))))


def paired_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """gloo ended a rank: a collective of one rank met another one of its peer."""
    for report in reports:
        if report.exitcode == -signal.SIGABRT and "gloo::" in report.output:
            found = (
                f"gloo ended rank {report.rank} of {len(reports)}: its collective was paired "
            )
            found += "with a different one, of another size, on another rank"
            yield TABLE("collective-on-some-ranks", found)
            return


def step_findings(job: Job, reports: Sequence[RankReport], at: int) -> Iterator[Finding]:
    """One step on all ranks."""
    facts = [report.answer[at] for report in reports]
    where = f"on {len(reports)} ranks, step {at + 1} ({job.steps[at].kind})"
    yield from first_of(
        argument_findings(facts, where),
        count_findings(facts, where),
        gradient_findings(job, facts, at, where),
        loss_findings(job, facts, at, where),
    )


def argument_findings(facts: Sequence[dict[str, Any]], where: str) -> Iterator[Finding]:
    """What was given is as it was."""
    for rank, fact in enumerate(facts):
        if fact["changed"]:
            found = f"{where} changed {listed(fact['changed'])} of rank {rank} in place"
            yield TABLE("changes-its-arguments", found)
            return


def count_findings(facts: Sequence[dict[str, Any]], where: str) -> Iterator[Finding]:
    """One optimizer step on every rank."""
    for rank, fact in enumerate(facts):
        if (taken := len(fact["followed"])) != 1:
            found = f"{where} was {counted(taken, 'optimizer step')} on rank {rank}"
            yield TABLE("wrong-steps", found)
            return


def gradient_findings(
    job: Job, facts: Sequence[dict[str, Any]], at: int, where: str
) -> Iterator[Finding]:
    """The gradient that the optimizer followed."""
    followed = [fact["followed"][0] for fact in facts]
    for rank, gradient in enumerate(followed):
        if not all(map(math.isfinite, gradient)):
            yield TABLE("nan-gradient", f"{where} gave rank {rank} a gradient with NaN in it")
            return
    for rank, gradient in enumerate(followed):
        if not is_close(gradient, followed[0]):
            found = f"{where} followed gradients of norm {math.hypot(*followed[0]):.4g} on "
            found += f"rank 0 and {math.hypot(*gradient):.4g} on rank {rank}, which differ"
            yield TABLE("ranks-differ", found)
            return
    first, *wrong = explanations(Sums(job, job.steps[at], [fact["parts"] for fact in facts]))
    right, ours = first.vector[:-1], followed[0]
    if is_close(ours, right):
        return
    for code, words, vector in wrong:
        if is_close(ours, vector[:-1]):
            found = f"{where} followed the gradient of {words}; its norm is "
            found += f"{math.hypot(*ours):.4g}, and that of the step's loss is "
            yield TABLE(code, f"{found}{math.hypot(*right):.4g}")
            return
    if (times := ratio(ours, right)) is not None:
        found = f"{where} followed {times:.4g} times the gradient of the step's loss"
        yield TABLE("wrong-scale", found)
        return
    found = f"{where} followed a gradient of norm {math.hypot(*ours):.4g}; that of the step's "
    found += f"loss has {math.hypot(*right):.4g} and another direction"
    if not any(right):
        found = f"{where} followed a gradient of norm {math.hypot(*ours):.4g}, not 0"
    yield TABLE("wrong-gradient", found)


def loss_findings(
    job: Job, facts: Sequence[dict[str, Any]], at: int, where: str
) -> Iterator[Finding]:
    """What each rank returned."""
    sums = Sums(job, job.steps[at], [fact["parts"] for fact in facts])
    loss = next(explanations(sums)).vector[-1]
    for rank, fact in enumerate(facts):
        returned = fact["returned"]
        if not fact["is_float"]:
            found = f"{where} returned {returned} on rank {rank}, not a float"
        elif not math.isclose(returned, loss, rel_tol=1e-4, abs_tol=1e-7):
            found = f"{where} returned {returned:.5g} on rank {rank}; its loss is {loss:.5g}"
        else:
            continue
        yield TABLE("wrong-loss", found)
        return


def scenarios(seed: int) -> list[Scenario]:
    """Three ranks, and two."""
    return [
        Scenario(
            name=name,
            body=partial(run, job),
            judge=partial(judge, job),
            world_size=job.world_size,
            judges_failures=True,
        )
        for name, job in jobs(seed).items()
    ]

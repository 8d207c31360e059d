"""SIGTERM at different times on different ranks: all leave together, and the run continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted, named_ranks
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import trained_by_step
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_rank_changes
from rehearsal.kit.judge.steps import sgd_findings, weights_by_step
from rehearsal.kit.judge.weights import (
    differs_from_one_run,
    largest_difference,
    ranks_differ,
    weights_of_ranks,
)

from .jobs import call
from .plan import AGAIN, AT_SAVE, Run, drawn

FINDINGS = FindingTable(
    {
        "leaves-alone": (
            "a rank leaves by itself, and the others wait for it",
            "all ranks take a step or none does, so they have to leave together",
            "at what a rank knows when it decides to leave, and what the others know then",
        ),
        "killed-by-sigterm": (
            "the signal ends a rank",
            "SIGTERM asks a process to stop within the grace period; handle it",
            "at which ranks handle the signal, and from when to when",
        ),
        "ignores-the-signal": (
            "a rank got SIGTERM, and the job trained to its end",
            "a signal on any rank stops all ranks",
            "at what a rank knows when it decides to leave, and what the others know then",
        ),
        "stops-late": (
            "the job takes more than one step after the signal",
            "after the signal, ranks take at most one more step: the grace period is short",
            "at how often the ranks check, and how old the answer is when they leave by it",
        ),
        "not-all-steps": (
            "the job ends before a signal, or before its last step",
            "without a signal, a run takes every step that shares yields, once",
            "at what ends the loop, and at where the optimizer steps",
        ),
        "wrong-return-value": (
            "train returns True for a stopped run, or False for a finished one",
            "on every rank, train returns False if a signal stopped the run, and True if it "
            "reached its end",
            "at each return",
        ),
        "starts-over": (
            "after the stop, the next job begins at step 0",
            "the next job continues after the last step of the stopped one",
            "at what is saved, on which rank, and at what each rank of the next job restores",
        ),
        "wrong-position": (
            "the next job repeats or skips a step",
            "the next job continues after the last step of the stopped one",
            "at how a job counts its steps, what it saves, and what the next one restores",
        ),
        "not-the-same-run": (
            "stopped and resumed, the run ends with different weights",
            "stopped and resumed, a run ends with the weights of an uninterrupted one",
            "at everything that the next step depends on: is it saved and restored?",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    **WRITER_CODES,
    "different-update": "a step doesn't follow the mean over all ranks' samples",
    "ranks-differ": "the ranks end with different weights",
}
Earlier = Mapping[str, Sequence[RankReport]]


def judge_stop(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A call during which ranks get SIGTERM."""
    start = steps_before(earlier)
    yield from first_of(
        one_rank_changes(reports),
        begin_findings(run, reports, earlier),
        end_findings(reports, start),
        stop_findings(run, reports, start),
        step_findings(run, reports, earlier),
    )


def judge_end(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The last call, during which no rank gets a signal."""
    start = steps_before(earlier)
    yield from first_of(
        one_rank_changes(reports),
        begin_findings(run, reports, earlier),
        end_findings(reports, start),
        finish_findings(run, reports, start),
        step_findings(run, reports, earlier),
        differs_from_one_run(reports) if all(r.has_answer for r in reports) else (),
    )


def steps_before(earlier: Earlier) -> int:
    """The steps that the calls before this one have taken."""
    return sum(taken(reports[0]) for reports in earlier.values())


def taken(report: RankReport) -> int:
    """Optimizer steps of a call."""
    return len(report.of("optimizer_step"))


def begin_findings(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Where a call resumed: with which samples, and with which weights."""
    if not earlier:
        return
    left, last = steps_before(earlier), [*earlier.values()][-1][0].answer["weights"]
    begun = {report.rank: own[0] for report in reports if (own := trained_by_step(report))}
    if not begun and not all(report.has_answer for report in reports):
        return  # it failed before its first step
    for report in reports:
        samples = begun.get(report.rank, [])
        step = samples[0] // (run.share * run.world_size) if samples else run.steps
        if step != left:
            text = f"the stopped run had taken {counted(left, 'optimizer step')}; in the next "
            text += f"job, rank {report.rank} "
            text += f"began at step {step}, counted from 0" if samples else "trained no samples"
            yield FINDINGS("starts-over" if step == 0 else "wrong-position", text)
            return
        weights = weights_by_step(report)[0]
        if weights != last:
            difference, name = largest_difference(weights, last)
            text = f"the run was stopped after step {left}; rank {report.rank} of the next job "
            text += "began with other weights than the stopped one had ended with: they differ "
            text += f"by up to {difference:.2g}, in {name}"
            yield FINDINGS("not-the-same-run", text)
            return


def who_got_it(reports: Sequence[RankReport], start: int) -> str:
    """ "rank 1 got SIGTERM after step 4"; one in a save comes after the decision to leave."""
    who = "; ".join(
        f"rank {report.rank} got SIGTERM after step {start + event['step']}"
        for report in reports
        for event in report.of("signaled")
        if event["place"] not in (AT_SAVE, AGAIN)
    )
    return who or "no rank has received SIGTERM yet"


def end_findings(reports: Sequence[RankReport], start: int) -> Iterator[Finding]:
    """A finding if a signal ended a rank, or if ranks wait for others that never come."""
    who = who_got_it(reports, start)
    for report in reports:
        if report.exitcode == -15:
            text = f"SIGTERM killed rank {report.rank} after step {start + taken(report)}"
            places = [event["place"] for event in report.of("signaled")]
            text += ", while it was saving" * (AT_SAVE in places)
            text += ", though it had survived the first one" * (AGAIN in places)
            yield FINDINGS("killed-by-sigterm", text)
            return
    if all(report.has_answer for report in reports):
        return
    look = "at what a rank knows when it decides to leave, and what the others know then"
    findings = list(mismatched_collectives(reports, "leaves-alone"))
    if not findings and any(map(killed, reports)):
        dead = named_ranks([report.rank for report in reports if killed(report)])
        findings = [FINDINGS("leaves-alone", f"{dead} died while the job was still running")]
    yield from (f._replace(found=f"{who}; {f.found}", look=look) for f in findings)


def stop_findings(run: Run, reports: Sequence[RankReport], start: int) -> Iterator[Finding]:
    """All ranks left after the same step, at most one step after the first signal."""
    if any(not report.has_answer for report in reports):
        return
    steps = [start + taken(report) for report in reports]
    signaled = [start + event["step"] for report in reports for event in report.of("signaled")]
    if not signaled:
        text = f"the ranks left after steps {some(steps)} of {run.steps} and returned "
        text += f"{some(returned(reports))}, before any of them got a signal"
        yield FINDINGS("not-all-steps", text)
        return
    facts = f"{who_got_it(reports, start)}; the ranks left after steps {some(steps)} of "
    facts += str(run.steps)
    if max(steps) == run.steps:
        yield FINDINGS("ignores-the-signal", facts)
    elif max(steps) > min(signaled) + 1:
        yield FINDINGS("stops-late", facts)
    elif len(set(steps)) > 1:
        yield FINDINGS("leaves-alone", facts)
    elif any(value is not False for value in returned(reports)):
        text = f"the run was stopped, and its ranks returned {some(returned(reports))}"
        yield FINDINGS("wrong-return-value", text)


def finish_findings(run: Run, reports: Sequence[RankReport], start: int) -> Iterator[Finding]:
    """The last call took all steps that were left."""
    if any(not report.has_answer for report in reports):
        return
    for report in reports:
        if start + taken(report) != run.steps:
            text = f"the next job began after step {start} and got no signal; rank "
            text += f"{report.rank} took {counted(taken(report), 'optimizer step')}, and "
            text += f"{run.steps - start} were left"
            yield FINDINGS("not-all-steps", text)
            return
    if any(value is not True for value in returned(reports)):
        text = f"the run reached its end, and its ranks returned {some(returned(reports))}"
        yield FINDINGS("wrong-return-value", text)


def step_findings(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """What each step trained, and its update, from the first one of the whole run."""
    if any(not report.has_answer for report in reports):
        return
    calls = [*earlier.values(), reports]
    whole = [in_one(list(own)) for own in zip(*calls, strict=True)]
    for report in whole:
        for step, samples in enumerate(trained_by_step(report)):
            if samples != list(run.ids(step, report.rank)):
                text = f"step {step + 1} trained samples {some(samples)} on rank {report.rank};"
                text += f" its share is {some(run.ids(step, report.rank))}"
                yield FINDINGS("wrong-position", text)
                return
    where = ""
    if earlier:
        stops = [*accumulate(taken(of_call[0]) for of_call in earlier.values())]
        where = f"the run was stopped after step {' and after step '.join(map(str, stops))}; "
    updates = list(
        first_of(
            ranks_differ(weights_of_ranks(reports), most=0.0, where=where),
            sgd_findings(whole, odd_net_gradient(whole), run.lr, where),
        )
    )
    for finding in updates:
        if earlier and finding.code == "different-update":
            # What was right before the stop and isn't after it has been lost in between.
            yield FINDINGS("not-the-same-run", finding.found)
        else:
            yield finding


def in_one(calls: Sequence[RankReport]) -> RankReport:
    """A rank's calls as one run: their completed steps, and the answer of the last."""
    events: list[dict[str, Any]] = []
    for report in calls:
        ends = [n for n, e in enumerate(report.events, 1) if e["kind"] == "optimizer_step"]
        events += report.events[: max(ends, default=0)]
    answer = {**calls[-1].answer, "given": calls[0].answer["given"]}
    return replace(calls[-1], events=events, answer=answer)


def returned(reports: Sequence[RankReport]) -> list[Any]:
    """What ``train`` returned on each rank."""
    return [report.answer["finished"] for report in reports]


def scenarios(seed: int) -> list[Scenario]:
    """Stopped by one rank's signal; resumed, and stopped by several; resumed until its end."""
    run = drawn(seed)
    jobs = [
        ("one rank gets SIGTERM", judge_stop),
        ("resumed; several ranks get SIGTERM", judge_stop),
        ("resumed until its end", judge_end),
    ]
    return [
        Scenario(
            name=name,
            body=partial(call, run, number),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=4,
            judges_failures=True,
        )
        for number, (name, judge) in enumerate(jobs)
    ]

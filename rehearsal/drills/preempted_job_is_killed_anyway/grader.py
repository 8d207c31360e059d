"""SIGTERM on one rank, or on each at a different step: all leave together, and resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport, killed
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import steps_in_stream, steps_taken
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import differs_from_one_run
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of
from rehearsal.kit.observe.stream import SampleStream
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, counted, named_ranks

CODES = {
    "leaves-alone": "a rank leaves by itself, and the others wait for it",
    "killed-by-sigterm": "the signal ends a rank before it can save",
    "ignores-the-signal": "a rank got SIGTERM, and the job trained to its end",
    "stops-late": "the job takes more than one step after the signal",
    "not-all-steps": "the job ends before a signal, or before its last step",
    "wrong-return-value": "train returns True for a stopped run, or False for a finished one",
    "starts-over": "after the stop, the next job begins at step 0",
    "wrong-position": "the next job repeats or skips a step",
    "not-the-same-run": "stopped and resumed, the run ends with different weights",
}
STREAM = SampleStream(steps=9)
LOOP = "at what ends the loop, and at where the optimizer steps"
WITHOUT_SIGNAL = "without a signal, a run takes every step that shares yields, once"


def body_in(name: str, signaled_after: Sequence[int] = ()) -> Body:
    """A body that trains in a folder of that name; each rank is signaled after its step."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        model = OddNet()
        watch_samples(context, model)
        folder = run_folder(context, name)
        if signaled_after:
            record_after(context, signaled_after[context.rank], "signaled")
        shares = STREAM.shares(context.rank, context.world_size)
        finished = learner.train(model, shares, folder, lr=STREAM.lr)
        expected = STREAM.expected(context.world_size)
        return {"finished": finished, "weights": weights_of(model), "expected": expected}

    return body


def record_after(context: RankContext, step: int, kind: str) -> None:
    """Record an event after this rank's ``step``-th optimizer step: a fault waits for it."""
    steps = count(1)

    def record(*_: object) -> None:
        if next(steps) == step:
            context.record(kind)

    register_optimizer_step_post_hook(record)


def judge_stop(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """All ranks left after the same step, at most one step after the first signal."""
    signaled = {r.rank: steps_taken(r, "signaled") for r in reports if r.of("signaled")}
    who = "; ".join(f"rank {rank} got SIGTERM after step {at}" for rank, at in signaled.items())
    who = who or "no rank has got SIGTERM yet"
    rule = "all ranks take a step or none does, so they have to leave together"
    look = "at what a rank knows when it decides to leave, and what the others know then"
    for report in reports:
        if report.exitcode == -15:
            text = f"SIGTERM killed rank {report.rank} after "
            text += counted(steps_taken(report), "step")
            yield Finding(
                "killed-by-sigterm",
                text,
                "SIGTERM asks a process to stop within the grace period; handle it",
                "at which ranks handle the signal",
            )
            return
    if any(not report.has_answer for report in reports):
        findings = list(mismatched_collectives(reports, "leaves-alone"))
        if not findings and any(map(killed, reports)):
            dead = named_ranks([report.rank for report in reports if killed(report)])
            text = f"{dead} died while the job was still running"
            findings = [Finding("leaves-alone", text, rule, look)]
        yield from (f._replace(found=f"{who}; {f.found}", look=look) for f in findings)
        return
    steps = [steps_taken(report) for report in reports]
    if not signaled:  # a rank gets the signal right after one of its own optimizer steps
        text = f"the ranks took {some(steps)} of {STREAM.steps} optimizer steps and returned "
        text += f"{some(returned(reports))}, before any of them got a signal"
        yield Finding("not-all-steps", text, WITHOUT_SIGNAL, LOOP)
        return
    facts = f"{who}; the ranks left after steps {some(steps)} of {STREAM.steps}"
    if max(steps) == STREAM.steps:
        yield Finding("ignores-the-signal", facts, "a signal on any rank stops all ranks", look)
    elif max(steps) > min(signaled.values()) + 1:
        rule = "after the signal, ranks take at most one more step: the grace period is short"
        yield Finding("stops-late", facts, rule, "at how often the ranks check")
    elif any(report.answer["finished"] is not False for report in reports):
        text = f"the run was stopped, and its ranks returned {some(returned(reports))}"
        rule = "train returns False on every rank if a signal stopped the run"
        yield Finding("wrong-return-value", text, rule, "at each return")


def judge_resume(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The job resumed after the last step of the stopped one, and reached the same weights."""
    left = steps_taken(earlier["one rank is signaled"][0])
    trained = steps_in_stream(reports[0], len(reports), STREAM.share)
    step = min(trained, default=STREAM.steps)
    if step != left:
        text = f"the stopped job took {counted(left, 'optimizer step')}; the next one "
        text += (
            f"began at step {step}, counted from 0"
            if trained
            else "trained no samples on rank 0"
        )
        rule = "the next job continues after the last step of the stopped one"
        code = "starts-over" if step == 0 else "wrong-position"
        look = "at how a job counts its steps, at what it saves and on which rank, and at what "
        look += "the next job restores"
        yield Finding(code, text, rule, look)
        return
    if (taken := steps_taken(reports[0])) != STREAM.steps - left:
        text = f"the next job began after step {left} and got no signal; rank 0 took "
        text += f"{counted(taken, 'optimizer step')}, and {STREAM.steps - left} were left"
        yield Finding("not-all-steps", text, WITHOUT_SIGNAL, LOOP)
        return
    if any(report.answer["finished"] is not True for report in reports):
        text = f"the run reached its end, and its ranks returned {some(returned(reports))}"
        rule = "train returns True on every rank if the run reached its end"
        yield Finding("wrong-return-value", text, rule, "at each return")
    yield from differs_from_one_run(reports)


def returned(reports: Sequence[RankReport]) -> list[Any]:
    """What ``train`` returned on each rank."""
    return [report.answer["finished"] for report in reports]


SCENARIOS = [
    Scenario(
        name="one rank is signaled",
        body=body_in("a", (99, 2, 99)),
        judge=judge_stop,
        world_size=3,
        deadline_s=4,
        fault=Fault(rank=1, at="signaled", count=1, signal="TERM"),
        judges_failures=True,
    ),
    Scenario(name="resumed", body=body_in("a"), judge=judge_resume, world_size=3, deadline_s=4),
    Scenario(
        name="each is signaled at a different step",
        body=body_in("b", (3, 2)),
        judge=judge_stop,
        deadline_s=4,
        fault=Fault(rank=None, at="signaled", count=1, signal="TERM"),
        judges_failures=True,
    ),
]

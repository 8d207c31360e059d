"""SIGTERM on one rank, or on each at another step: all leave after the same step, and go on."""

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
from rehearsal.grading.verdict import Finding

CODES = {
    "left-alone": "a rank leaves, and the others wait for it",
    "dies-of-sigterm": "the signal ends a rank before it can save",
    "ignores-the-signal": "a rank was told to stop, and the job trained to its end",
    "stops-late": "the job trains on for more than one step after the signal",
    "wrong-answer": "train returns True for a stopped run, or False for a whole one",
    "starts-over": "after the stop, a new job begins at step 0",
    "wrong-position": "a new job repeats or skips a step",
    "not-the-same-run": "stopped and resumed, the weights are not those of one run",
}
STREAM = SampleStream(steps=9)


def body_in(name: str, told_after: Sequence[int] = ()) -> Body:
    """A body that trains in a folder of that name; a rank is told after its step there."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        model = OddNet()
        watch_samples(context, model)
        folder = run_folder(context, name)
        if told_after:
            record_after(context, told_after[context.rank], "told")
        shares = STREAM.shares(context.rank, context.world_size)
        whole = learner.train(model, shares, folder, lr=STREAM.lr)
        expected = STREAM.expected(context.world_size)
        return {"whole": whole, "weights": weights_of(model), "expected": expected}

    return body


def record_after(context: RankContext, step: int, kind: str) -> None:
    """Record an event after that optimizer step of this rank: a fault may wait for it."""
    steps = count(1)

    def record(*_: object) -> None:
        if next(steps) == step:
            context.record(kind)

    register_optimizer_step_post_hook(record)


def judge_stop(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """All ranks left after one step, at most one after the first signal."""
    told = {r.rank: steps_taken(r, "told") for r in reports if r.of("told")}
    who = "; ".join(f"rank {rank} was told after step {step}" for rank, step in told.items())
    rule = "a step is taken by all ranks or by none: so they leave together"
    look = "at what a rank knows when it decides to leave, and what the others know then"
    for report in reports:
        if report.exitcode == -15:
            text = f"rank {report.rank} died of SIGTERM after {steps_taken(report)} steps"
            yield Finding(
                "dies-of-sigterm",
                text,
                "a signal is a request with a grace time",
                "at which ranks listen",
            )
            return
    if any(not report.has_answer for report in reports):
        findings = list(mismatched_collectives(reports, "left-alone"))
        if not findings and any(map(killed, reports)):
            findings = [Finding("left-alone", "a rank fell in a collective", rule, look)]
        yield from (f._replace(found=f"{who}; {f.found}", look=look) for f in findings)
        return
    steps = [steps_taken(report) for report in reports]
    facts = f"{who}; the ranks left after step {some(steps)} of {STREAM.steps}"
    if max(steps) == STREAM.steps:
        yield Finding("ignores-the-signal", facts, "a signal on any rank stops all", look)
    elif max(steps) > min(told.values(), default=0) + 1:
        rule = "after the signal at most one more step: the grace time is short"
        yield Finding("stops-late", facts, rule, "at how often the ranks look")
    elif any(report.answer["whole"] is not False for report in reports):
        text = f"train returned {[report.answer['whole'] for report in reports]}"
        yield Finding("wrong-answer", text, "False tells that it was stopped", "at each return")


def judge_resume(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The job went on after the last step of the stopped one, to the same weights."""
    left = steps_taken(earlier["one rank is told"][0])
    trained = steps_in_stream(reports[0], len(reports), STREAM.share)
    step = min(trained, default=STREAM.steps)
    if step != left:
        text = f"the stopped job took {left} steps; the next one began with step {step}"
        rule = "what was trained before the stop is not trained again"
        code = "starts-over" if step == 0 else "wrong-position"
        yield Finding(code, text, rule, "at what is saved, when, and by whom")
        return
    if any(report.answer["whole"] is not True for report in reports):
        text = f"train returned {[report.answer['whole'] for report in reports]}"
        yield Finding("wrong-answer", text, "True tells that all is trained", "at each return")
    yield from differs_from_one_run(reports)


SCENARIOS = [
    Scenario(
        name="one rank is told",
        body=body_in("a", (99, 2, 99)),
        judge=judge_stop,
        world_size=3,
        deadline_s=4,
        fault=Fault(rank=1, at="told", count=1, signal="TERM"),
        judges_failures=True,
    ),
    Scenario(name="resumed", body=body_in("a"), judge=judge_resume, world_size=3, deadline_s=4),
    Scenario(
        name="each is told at another step",
        body=body_in("b", (3, 2)),
        judge=judge_stop,
        deadline_s=4,
        fault=Fault(rank=None, at="told", count=1, signal="TERM"),
        judges_failures=True,
    ),
]

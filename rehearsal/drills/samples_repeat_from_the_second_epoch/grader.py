"""Every epoch trains each sample once, in a new order, whether or not anyone evaluates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import steps_taken
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import ranks_differ, weights_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of
from rehearsal.kit.observe.samples import marked_samples, watch_samples, weights_of
from .deal import deal_findings, orders
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, Judge, counted, shortened

CODES = {
    "wrong-return-value": "train returns something other than a list of (step, loss)",
    "wrong-evaluations": "rank 0 does not return the evaluations due, or another rank does",
    "trained-twice": "an epoch does not train each sample once, in steps of one global batch",
    "order-repeats": "two epochs have the same order",
    "seed-ignored": "two seeds give the same order",
    "ranks-differ": "the ranks end with different weights",
    "evaluation-changes-training": "the weights depend on how often rank 0 evaluates",
    "same-draw": "two evaluations use the same held-out samples",
}
NUM_SAMPLES, NUM_HELD_OUT, EVAL_SIZE, EPOCHS, GLOBAL_BATCH_SIZE = 22, 40, 8, 3, 7
STEPS_PER_EPOCH = -(-NUM_SAMPLES // GLOBAL_BATCH_SIZE)
PAIRS = "train returns a list: on rank 0, a pair (step, loss) for each evaluation; else empty"


def body_with(seed: int, eval_every: int) -> Body:
    """A body that trains with that seed."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        inputs, targets = marked_samples(NUM_SAMPLES + NUM_HELD_OUT)
        model = OddNet()
        watch_samples(context, model)

        def evaluated(batch: Tensor) -> None:
            if not torch.is_grad_enabled():
                context.record("evaluated", samples=ids_of(batch))

        before_forward(model, evaluated)
        began = weights_of(model)
        lines = learner.train(
            model,
            (inputs[:NUM_SAMPLES], targets[:NUM_SAMPLES]),
            (inputs[NUM_SAMPLES:], targets[NUM_SAMPLES:]),
            seed=seed,
            epochs=EPOCHS,
            lr=0.02,
            global_batch_size=GLOBAL_BATCH_SIZE,
            eval_every=eval_every,
            eval_size=EVAL_SIZE,
        )
        return {"weights": weights_of(model), "began": began, "lines": lines}

    return body


def evaluation_findings(reports: Sequence[RankReport], eval_every: int) -> Iterable[Finding]:
    """Rank 0 evaluates when it is due, on different samples each time."""
    last = EPOCHS * STEPS_PER_EPOCH
    due = [step for step in range(1, last + 1) if step % eval_every == 0]
    for report in reports:
        if not is_log(report.answer["lines"]):
            text = f"rank {report.rank} returned {shortened(repr(report.answer['lines']), 80)}"
            yield Finding("wrong-return-value", text, PAIRS, "at what train returns")
            return
    found = [[int(step) for step, _ in report.answer["lines"]] for report in reports]
    if found != [due] + [[]] * (len(reports) - 1):
        text = (
            f"with eval_every={eval_every} and {last} steps, rank 0 should return evaluations "
        )
        text += f"after steps {due}, and other ranks none; the ranks returned {some(found)}"
        rule = "rank 0 reports every evaluation that is due, and no other rank reports one"
        look = "at when an evaluation is added to the list, and on which rank"
        yield Finding("wrong-evaluations", text, rule, look)
    else:
        yield from too_early(reports[0], due)
    drawn = [event["samples"] for event in reports[0].of("evaluated")]
    for number, samples in enumerate(drawn):
        if samples in drawn[:number]:
            text = (
                f"rank 0's evaluation passes {drawn.index(samples) + 1} and {number + 1} used "
            )
            text += f"the same samples: {some(samples)}"
            rule = "each evaluation uses a fresh draw"
            yield Finding("same-draw", text, rule, "at which random generator is used")
            return


def is_log(lines: object) -> bool:
    """Whether that is a list of pairs of a whole number and a number."""
    return isinstance(lines, list) and all(
        isinstance(line, list)
        and len(line) == 2
        and all(isinstance(value, int | float) for value in line)
        and float(line[0]).is_integer()
        for line in lines
    )


def too_early(report: RankReport, due: Sequence[int]) -> Iterable[Finding]:
    """A finding if an evaluation ran before the step for which it is reported."""
    kinds = [e["kind"] for e in report.events if e["kind"] in ("optimizer_step", "evaluated")]
    passes = [at for at, kind in enumerate(kinds) if kind == "evaluated"]
    if len(passes) != len(due):
        return  # nobody knows which pass belongs to which evaluation
    for step, at in zip(due, passes, strict=True):
        if (done := kinds[:at].count("optimizer_step")) < step:
            text = f"rank 0 evaluated after {counted(done, 'optimizer step')}, and returned "
            text += f"that loss for step {step}"
            rule = "an evaluation that is due at a step runs after it; steps count from 1"
            yield Finding("wrong-evaluations", text, rule, "at how the steps are counted")
            return


def judge_with(eval_every: int) -> Judge:
    """The judge of a job, compared with those before it."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        yield from first_of(
            deal_findings(reports, NUM_SAMPLES, EPOCHS, STEPS_PER_EPOCH),
            unmoved(reports[0]),
            ranks_differ(weights_of_ranks(reports)),
            against(reports, earlier),
            evaluation_findings(reports, eval_every),
        )

    return judge


def unmoved(report: RankReport) -> Iterable[Finding]:
    """A finding if no step moved a weight."""
    if report.answer["weights"] == report.answer["began"]:
        text = f"rank {report.rank} took {counted(steps_taken(report), 'optimizer step')}, and "
        text += "none of them moved a weight"
        rule = "an epoch trains each sample exactly once"
        look = "at how a gradient gets from the loss to the optimizer"
        yield Finding("trained-twice", text, rule, look)


def against(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Two jobs that differ in their evaluations train the same; two seeds do not."""
    first = earlier.get("evaluates often")
    if first and len(first) == len(reports):
        yield from weights_differ(
            "evaluation-changes-training",
            "with eval_every=3 and with eval_every=100, the final weights differ",
            first[0].answer["weights"],
            reports[0].answer["weights"],
            0.0,
            "evaluating must not change training",
            "at which random generators training and evaluation both draw from",
        )
    elif first and orders(first, STEPS_PER_EPOCH) == orders(reports, STEPS_PER_EPOCH):
        text = "with seed=5 and with seed=6, all batches are the same"
        rule = "the order is a function of seed and epoch"
        yield Finding("seed-ignored", text, rule, "at where the seed is used")


SCENARIOS = [
    Scenario(
        name=name,
        body=body_with(seed, eval_every),
        judge=judge_with(eval_every),
        world_size=world_size,
        deadline_s=4,
    )
    for name, world_size, seed, eval_every in (
        ("evaluates often", 2, 5, 3),
        ("never evaluates", 2, 5, 100),
        ("another seed", 3, 6, 2),
    )
]

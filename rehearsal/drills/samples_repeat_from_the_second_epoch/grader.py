"""Every epoch trains each sample once, in a new order, whether or not anyone evaluates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted, shortened
from rehearsal.kit.judge.findings import first_of, is_step_log, some
from rehearsal.kit.judge.weights import (
    largest_difference,
    ranks_differ,
    weights_differ,
    weights_of_ranks,
)
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .deal import FINDINGS as DEALS
from .deal import deal_findings, seed_findings
from .plan import Run, drawn
from .watch import Watch, expected, seed_ambient

FINDINGS = FindingTable(
    {
        "wrong-return-value": (
            "train returns something other than a list of (step, loss)",
            "rank 0 returns a list of (step, loss), one for each evaluation; other ranks, []",
            "at what train returns",
        ),
        "wrong-evaluations": (
            "rank 0 doesn't return the evaluations due, or another rank does",
            "rank 0 reports every evaluation that is due, and no other rank reports one",
            "at when an evaluation is added to the list, and on which rank",
        ),
        "wrong-loss": (
            "an evaluation isn't the mean loss on eval_size different held-out samples",
            "after its step, an evaluation is the mean loss on eval_size different held-out "
            "samples",
            "at what is evaluated, when, and at what its sum is divided by",
        ),
        "same-draw": (
            "two evaluations use the same held-out samples",
            "each evaluation uses a fresh draw",
            "at which random generator is used",
        ),
        "wrong-update": (
            "a step doesn't follow the mean loss over its global batch",
            "a step follows the mean loss over its global batch, with momentum",
            "at how a gradient gets from the loss to the optimizer, and what clears it",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    **DEALS.codes,
    "ranks-differ": "the ranks end with different weights",
    "evaluation-changes-training": "the weights depend on how often rank 0 evaluates",
}


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return the log, what this rank trained, and the weights it should have."""
    context.init_group()
    inputs, targets = marked_samples(run.num_samples + run.num_held_out)
    model = OddNet()
    watch = Watch(context, run, model)
    seed_ambient(run, context.rank)
    began = weights_of(model)
    lines = learner.train(
        model,
        (inputs[: run.num_samples].clone(), targets[: run.num_samples].clone()),
        (inputs[run.num_samples :].clone(), targets[run.num_samples :].clone()),
        seed=run.seed,
        epochs=run.epochs,
        lr=run.lr,
        global_batch_size=run.global_batch_size,
        eval_every=run.eval_every,
        eval_size=run.eval_size,
    )
    weights, trained = weights_of(model), watch.trained()
    by_rank: list[Any] = [None] * context.world_size
    dist.all_gather_object(by_rank, trained)
    return {
        "weights": weights,
        "began": began,
        "lines": lines,
        "trained": trained,
        "expected": expected(run, by_rank) if context.rank == 0 else None,
    }


def judge(
    run: Run,
    runs: Mapping[str, Run],
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Iterable[Finding]:
    """The findings of one job, by itself and compared with the first job."""
    yield from first_of(
        deal_findings(reports, run),
        unmoved(reports[0]),
        ranks_differ(weights_of_ranks(reports), most=0.0),
        update_findings(reports),
        against(run, runs, reports, earlier),
        return_findings(run, reports),
        draw_findings(run, reports[0]),
    )


def unmoved(report: RankReport) -> Iterable[Finding]:
    """A finding if no step moved a weight."""
    if report.answer["weights"] == report.answer["began"]:
        text = f"rank {report.rank} took "
        text += f"{counted(len(report.answer['trained']), 'optimizer step')}, and none of them "
        yield FINDINGS("wrong-update", text + "moved a weight")


def update_findings(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """A finding if the weights aren't those of one process that trains the same steps."""
    answer = reports[0].answer
    difference, name = largest_difference(answer["weights"], answer["expected"])
    if not difference <= 1e-5:
        found = f"on {counted(len(reports), 'rank')}, the weights differ by up to "
        found += f"{difference:.2g}, in {name}, from those of one process that trains the same "
        found += "global batches"
        look = "at every number that a sample's gradient is multiplied with, at what clears "
        look += "it, and at the optimizer's settings"
        yield FINDINGS("wrong-update", found, look)


def against(
    run: Run,
    runs: Mapping[str, Run],
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Iterable[Finding]:
    """Runs that differ in their evaluations train the same; two seeds have two orders."""
    name, first = next(iter(runs.items()))
    if name not in earlier:
        return
    if first.seed != run.seed:
        yield from seed_findings(reports, run, earlier[name], first)
        return
    yield from weights_differ(
        "evaluation-changes-training",
        f"with eval_every={first.eval_every} and with eval_every={run.eval_every}, the final "
        "weights differ",
        earlier[name][0].answer["weights"],
        reports[0].answer["weights"],
        0.0,
        "evaluating must not change training",
        "at which random generators training and evaluation both draw from",
    )


def return_findings(run: Run, reports: Sequence[RankReport]) -> Iterable[Finding]:
    """What each rank returned: pairs, on rank 0 only, for the steps that are due."""
    for report in reports:
        if not is_step_log(report.answer["lines"]):
            text = f"rank {report.rank} returned {shortened(repr(report.answer['lines']), 80)}"
            yield FINDINGS("wrong-return-value", text)
            return
    found = [[int(step) for step, _ in report.answer["lines"]] for report in reports]
    if found != [run.due] + [[]] * (len(reports) - 1):
        text = f"with eval_every={run.eval_every} and {run.steps} steps, rank 0 should return "
        text += f"evaluations after steps {run.due}, and other ranks none; the ranks returned "
        yield FINDINGS("wrong-evaluations", text + some(found))


def draw_findings(run: Run, report: RankReport) -> Iterable[Finding]:
    """Which held-out samples each evaluation took, after which step, and their mean loss."""
    passes = report.of("evaluated")
    drawn_sets: dict[tuple[int, ...], int] = {}
    for step, loss in report.answer["lines"]:
        own = [event for event in passes if event["step"] == step]
        samples = [sample for event in own for sample in event["samples"]]
        where = f"with eval_size={run.eval_size}, the evaluation of step {int(step)} "
        outside = [sample for sample in samples if sample < run.num_samples]
        if not samples:
            after = sorted({event["step"] for event in passes})
            found = f"no sample was evaluated after step {int(step)}; rank 0 evaluated after "
            found += f"{'steps' if len(after) > 1 else 'step'} {some(after) or 'none'}"
            look = "at how the steps are counted, and at when the evaluation runs"
            yield FINDINGS("wrong-evaluations", found, look)
            return
        if outside or len(samples) != run.eval_size:
            found = f"{where}took {counted(len(samples), 'sample')}"
            found += f", {len(outside)} of them from the training data" * bool(outside)
            yield FINDINGS("wrong-loss", found, "at which samples are drawn, and how many")
            return
        if len(set(samples)) < len(samples):
            found = f"{where}drew {counted(len(set(samples)), 'different sample')}; some came "
            found += "more than once"
            yield FINDINGS("wrong-loss", found, "at how the samples are drawn")
            return
        right = sum(event["error"] for event in own) / len(samples)
        if not math.isclose(loss, right, rel_tol=1e-4):
            found = (
                f"{where}returned a loss of {loss:.5g}; the model's mean loss on the samples "
            )
            yield FINDINGS("wrong-loss", found + f"that it drew was {right:.5g}")
            return
        key = tuple(sorted(samples))
        if key in drawn_sets:
            found = f"the evaluations of steps {drawn_sets[key]} and {int(step)} used the same "
            yield FINDINGS("same-draw", found + f"samples: {some(key)}")
            return
        drawn_sets[key] = int(step)


def scenarios(seed: int) -> list[Scenario]:
    """Three runs: one that evaluates, the same one without, and one with another seed."""
    runs = drawn(seed)
    return [
        Scenario(
            name=name,
            body=partial(body, run),
            judge=partial(judge, run, runs),
            world_size=run.world_size,
            deadline_s=4,
        )
        for name, run in runs.items()
    ]

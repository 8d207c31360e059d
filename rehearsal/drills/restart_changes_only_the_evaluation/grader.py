"""An uninterrupted run; a run that is killed between two saves, and its restart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import first_of, only_first, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import Weights, largest_difference, ranks_differ
from rehearsal.kit.judge.weights import weights_of_ranks
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import marked_samples, weights_of
from rehearsal.kit.observe.updates import UpdateWatch

from .runs import TIED, WHOLE_WORLD_SIZE, RunPlan, expected, held_out_samples, plain_weights
from .runs import plan_of, tied_net

CODES = {
    **WRITER_CODES,
    "wrong-steps": "a call takes more or fewer steps than the run has left",
    "starts-over": "a restart trains from step 1 although there is a checkpoint",
    "ranks-differ": "the ranks end with different weights",
    "not-the-same-run": "the model's own weights are not those of an uninterrupted run",
    "names-missing": "the average doesn't have the names of the model's state dict",
    "average-jumps": "after a restart, the average doesn't continue from where it was",
    "shared-weight-differs": "only the average of the shared weight is wrong",
    "wrong-average": "the average doesn't follow the formula, even without a restart",
    "wrong-evaluations": "an evaluation is missing, extra, or not the average's",
}
TOLERANCE = 5e-5  # against a sum in another order; a wrong average is off by far more


def body(
    context: RankContext, learner: SimpleNamespace, *, plan: RunPlan, run: str
) -> dict[str, Any]:
    """Train in the folder of ``run``, or resume there."""
    context.init_group()
    list_backward()
    net = tied_net(context.rank)
    updates = UpdateWatch(context, net)
    average, evaluations = learner.train(
        net,
        *marked_samples(plan.num_samples),
        held_out_samples(),
        folder=run_folder(context, run),
        **plan.settings(),
    )
    updates.end()
    return {
        "weights": weights_of(net),
        "average": plain_weights(average),
        "evaluations": [(int(step), float(loss)) for step, loss in evaluations],
        "expected": expected(plan) if context.rank == 0 else None,
    }


def judge_run(
    reports: Sequence[RankReport], earlier: object, *, plan: RunPlan, start: int
) -> Iterator[Finding]:
    """Steps, the model's own weights and the names of the average; not yet its values."""
    where = f"on {counted(len(reports), 'rank')}, "
    where += f"restarted after the save due at step {start}, " if start else "uninterrupted, "
    wanted = reports[0].answer["expected"]
    for report in reports:
        taken, left = len(report.of("stepped")), plan.steps - start
        if taken != left:
            found = f"{where}rank {report.rank} took {counted(taken, 'optimizer step')}; "
            found += f"of {plan.steps}, {left} were left"
            code = "starts-over" if start and taken == plan.steps else "wrong-steps"
            rule = "a restart resumes from the newest checkpoint, and a run ends after its "
            rule += "last epoch"
            look = "at what is saved, at what a restart reads back, and at what ends the loop"
            yield Finding(code, found, rule, look)
            return
    look = "at the weights with which each rank begins, and at what it does with them later"
    yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=where)
    difference, name = largest_difference(reports[0].answer["weights"], wanted["weights"])
    if not difference <= TOLERANCE:
        found = f"{where}the model's weights differ by up to {difference:.2g}, in {name}, from "
        found += "those of one process that trains the same batches"
        rule = "averaging, evaluating and restarting don't change what is trained"
        look = "at everything that reads or writes the model's weights or the optimizer's state"
        yield Finding("not-the-same-run", found, rule, look)
    for report in reports:
        names = report.answer["average"].keys()
        if names != wanted["average"].keys():
            differ = sorted(names ^ wanted["average"].keys())
            found = f"{where}rank {report.rank}'s average and the model's state dict don't "
            found += f"have the same names: {some(differ)}"
            rule = "the average has each name of model.state_dict()"
            yield Finding("names-missing", found, rule, "at what the average goes over")


def judge_average(
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
    *,
    plan: RunPlan,
    start: int,
) -> Iterator[Finding]:
    """The average of the restart, explained by that of the uninterrupted run."""
    whole = earlier["uninterrupted"]
    wanted: Weights = whole[0].answer["expected"]["average"]
    own = [name for name in wanted if name not in TIED]
    restarted = f"restarted after the save due at step {start}"
    for code, jobs, names, where, look in (
        ("wrong-average", whole, own, "uninterrupted", "at what an update takes in, and when"),
        (
            "average-jumps",
            reports,
            own,
            restarted,
            "at everything that the next update of the average depends on",
        ),
        (
            "shared-weight-differs",
            whole,
            wanted,
            "uninterrupted",
            "at what becomes of the weight that has two names",
        ),
        (
            "shared-weight-differs",
            reports,
            wanted,
            restarted,
            "at what becomes of the weight that has two names",
        ),
    ):
        for report in jobs:
            ours = report.answer["average"]
            difference, name = largest_difference(
                {name: ours[name] for name in names}, {name: wanted[name] for name in names}
            )
            if not difference <= TOLERANCE:
                found = f"on {counted(len(jobs), 'rank')}, {where}, rank {report.rank}'s final "
                found += f"average is off by up to {difference:.2g}, in {name}"
                found += evaluated(report.answer["evaluations"], whole)
                rule = "update n of the run moves every name of the average once, with the "
                rule += "decay of n"
                yield Finding(code, found, rule, look)
                return


def evaluated(evaluations: Sequence[Sequence[float]], whole: Sequence[RankReport]) -> str:
    """ "; it evaluates step 7 at 1.31 instead of 1.12": the first evaluation that is off."""
    wanted = dict(whole[0].answer["expected"]["losses"])
    for step, loss in evaluations:
        if step in wanted and not math.isclose(loss, wanted[step], rel_tol=1e-3):
            return f"; it evaluates step {step} at {loss:.4g} instead of {wanted[step]:.4g}"
    return ""


def judge_evaluations(
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
    *,
    plan: RunPlan,
    start: int,
) -> Iterator[Finding]:
    """The evaluations of a run, once its average is right."""
    whole = earlier.get("uninterrupted", reports)
    for jobs, first in ((whole, 0), (reports, start)):
        wanted = [e for e in whole[0].answer["expected"]["losses"] if e[0] > first]
        where = f"restarted after the save due at step {first}" if first else "uninterrupted"
        for report in jobs:
            ours = report.answer["evaluations"]
            found = ""
            if [step for step, _ in ours] != [step for step, _ in wanted]:
                found = f"rank {report.rank} returned evaluations of steps "
                found += f"{some([step for step, _ in ours], 20) or 'none'}; due were "
                found += some([step for step, _ in wanted], 20)
            else:
                off = [
                    (step, loss, right)
                    for (step, loss), (_, right) in zip(ours, wanted, strict=True)
                    if not math.isclose(loss, right, rel_tol=1e-4)
                ]
                for step, loss, right in off[:1]:
                    found = f"rank {report.rank} evaluated step {step} at {loss:.5g}; with the "
                    found += f"average after that step, it's {right:.5g}"
            if found:
                rule = "every evaluate_every steps, train evaluates with the average as it is "
                rule += "after that step"
                look = "at when an evaluation runs, with which weights, and on which ranks"
                found = f"on {counted(len(jobs), 'rank')}, {where}, {found}"
                yield Finding("wrong-evaluations", found, rule, look)
                return


def judge_uninterrupted(
    reports: Sequence[RankReport], earlier: object, *, plan: RunPlan
) -> Iterator[Finding]:
    """The run first, then its saves; the restart explains the rest."""
    yield from first_of(
        judge_run(reports, earlier, plan=plan, start=0),
        one_writer(reports, step_ends="stepped"),
    )


def judge_resumed(
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
    *,
    plan: RunPlan,
    start: int,
) -> Iterator[Finding]:
    """A restart: the run first, then its average, then its evaluations."""
    yield from first_of(
        *(
            part(reports, earlier, plan=plan, start=start)
            for part in (judge_run, judge_average, judge_evaluations)
        )
    )


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check."""
    plan = plan_of(seed)
    return [
        Scenario(
            name="uninterrupted",
            body=partial(body, plan=plan, run="a"),
            judge=only_first(partial(judge_uninterrupted, plan=plan)),
            world_size=WHOLE_WORLD_SIZE,
        ),
        Scenario(
            name="killed",
            body=partial(body, plan=plan, run="b"),
            judge=judge_killed,
            world_size=plan.world_size,
            fault=Fault(rank=plan.killed_rank, at="stepped", count=plan.killed_after),
        ),
        Scenario(
            name="restarted",
            body=partial(body, plan=plan, run="b"),
            judge=only_first(partial(judge_resumed, plan=plan, start=plan.start)),
            world_size=plan.world_size,
        ),
    ]

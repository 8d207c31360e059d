"""Killed at every kind of moment, and started again when finished: is it still one run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, FindingTable
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.coverage import miscounted, samples_by_step, trained_by_step
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import EPOCH_BOUNDS, judge_killed
from rehearsal.kit.judge.saves import FINDINGS as SAVE_FINDINGS
from rehearsal.kit.judge.saves import (
    Kill,
    first_wrong_start,
    killed_after,
    kills_in_saves,
    repeated_order,
    resumed_after,
    start_after_kill,
    wrong_sizes,
)
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import (
    ONCE,
    epoch_coverage,
    first_weight_findings,
    step_count_findings,
)
from rehearsal.kit.judge.weights import ranks_differ
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.saves import Keep, keeping_saves, kept_folders, starting_in
from rehearsal.kit.observe.steps import trains_in_steps

from .adamw import adamw_findings
from .plan import Plan, drawn

POSITION = "at which position the newest checkpoint gives, when it is written, and who reads it"
FINDINGS = FindingTable(
    {
        "epoch-skipped": (
            "a restart skips an epoch: every sample is trained too few times",
            ONCE,
            POSITION,
        ),
        "epoch-trained-again": (
            "a restart repeats an epoch: every sample is trained too often",
            ONCE,
            POSITION,
        ),
        "no-save-at-epoch-end": (
            "no checkpoint is saved at an epoch's end",
            "checkpoints are due every checkpoint_every steps and at each epoch's end",
            "at what is saved after a step and after an epoch's last one, and at what counts",
        ),
        "finished-run-trains": (
            "a finished run trains, or loses its weights, when started again",
            "starting a finished run again takes no step and leaves its weights in the model",
            POSITION,
        ),
        "ranks-resume-apart": (
            "the ranks of a job resume from different steps",
            "all ranks resume from the same position, with the same weights",
            "at which ranks restore what, and at what happens to it before the first step",
        ),
    }
)
CODES = {**STEP_CODES, **SAVE_FINDINGS.codes, **WRITER_CODES, **FINDINGS.codes}
OF_ALL_SAMPLES = {"never-trained": "epoch-skipped", "trained-twice": "epoch-trained-again"}
# Two restarts are killed in their turn: one in the middle of an epoch, and one from its end.
AGAIN = {"killed": Keep(first=1, later=0, between=(0,))}
AGAIN |= {f"whole-killed-{rank}-00": Keep(0, 0, between=(0,)) for rank in range(3)}
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, plan: Plan) -> Body:
    """A body that trains in ``folder``, or resumes there."""
    return trains_in_steps(
        folder, plan.run.num_samples, before=list_backward, **plan.run.arguments
    )


def judge_uninterrupted(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of the uninterrupted run."""
    run, whole = plan.run, aligned(reports)
    where = f"on {run.world_size} ranks, without a restart, "
    ends = [report.answer["weights"] for report in whole]
    yield from first_of(
        first_weight_findings(whole, where),
        step_count_findings(run, whole, where),
        epoch_coverage(run, samples_by_step(whole), where, EPOCH_BOUNDS),
        wrong_sizes(run, whole),
        adamw_findings(whole, run.lr),
        ranks_differ(ends, most=0.0, where=where),
        repeated_order(run, whole),
        one_writer(reports),
    )


def judge_again(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of the first start that is wrong."""
    run, whole = plan.run, aligned(earlier["uninterrupted"])
    finished = "the run had finished, and was started again"
    kills = [
        ("killed", killed_after(run, whole, plan.killed_after, f"rank {plan.killed_rank} was")),
        *kills_in_saves(run, whole),
        ("whole", Kill(finished, run.total, run.total)),
    ]
    yield from first_wrong_start(run, whole, reports, kills, partial(judge_start, plan, whole))


def judge_start(
    plan: Plan, whole: Sequence[RankReport], start: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """The findings of one start, with codes of their own where all of an epoch is affected."""
    run, at = plan.run, resumed_after(whole, start) or 0
    found = first_of(
        share_findings(whole, start, kill), start_after_kill(run, whole, start, kill, POSITION)
    )
    for finding in found:
        lineage = [*samples_by_step(whole)[:at], *samples_by_step(start)]
        wrong = miscounted(chain(*lineage), run.num_samples, run.epochs)
        due = next((due for due in run.dues() if due > at), 0)
        took_none = not samples_by_step(start) and all(report.answer for report in start)
        if at == run.total or (at == 0 and took_none):
            yield FINDINGS("finished-run-trains", finding.found)
        elif finding.code == "no-save-when-due" and due % run.every:
            yield FINDINGS("no-save-at-epoch-end", finding.found)
        elif run.num_samples in map(len, wrong):
            yield finding._replace(code=OF_ALL_SAMPLES.get(finding.code, finding.code))
        else:
            yield finding


def share_findings(
    whole: Sequence[RankReport], start: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """A finding if the ranks began with their shares of different steps."""
    shares: dict[int, set[int]] = {}
    for known, report in zip(whole, start, strict=True):
        first = next(iter(trained_by_step(report)), [])
        steps = trained_by_step(known)
        if first in steps and first:
            shares[report.rank] = {n for n, samples in enumerate(steps, 1) if samples == first}
    if shares and not set.intersection(*shares.values()):
        said = [f"step {min(own)} on rank {rank}" for rank, own in shares.items()]
        found = f"{kill.how}; the restart began with the samples of {some(said)}"
        yield FINDINGS("ranks-resume-apart", found)


def scenarios(seed: int) -> list[Scenario]:
    """A whole run, a killed one, and starts after it, after kills in saves, and at the end."""
    plan = drawn(seed)
    first_end = plan.run.dues().index(plan.run.steps_per_epoch)
    keep = Keep(first=1, later=4, between=(first_end, -4, -3, -2))

    def job(name: str, body: Body, judge: Any, deadline_s: float = 6, **rest: Any) -> Scenario:
        ranks = plan.run.world_size
        return Scenario(
            name=name, body=body, judge=judge, world_size=ranks, deadline_s=deadline_s, **rest
        )

    def folders(context: RankContext) -> list[str]:
        return ["killed", *kept_folders(context, "whole"), "whole"]

    return [
        job(
            "uninterrupted",
            keeping_saves(train_in("whole", plan), "whole", keep, seed=seed),
            partial(judge_uninterrupted, plan),
        ),
        job(
            "killed",
            train_in("killed", plan),
            judge_killed,
            fault=Fault.after_step(plan.killed_after, rank=plan.killed_rank),
        ),
        job(
            "restarted",
            starting_in(lambda folder: train_in(folder, plan), folders, AGAIN, seed=seed),
            partial(judge_again, plan),
            deadline_s=15,  # for many starts
            judges_failures=True,
        ),
    ]

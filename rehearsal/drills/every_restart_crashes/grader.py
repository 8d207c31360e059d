"""The writer dies at any moment of a save, and between two saves; the job lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, FindingTable
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.killed_saves import run_before_restarts
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import (
    moment_findings,
    one_order,
    resumption_findings,
    whole_findings,
)
from rehearsal.kit.observe.killed_saves import killed_in_its_saves
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.steps import trains_in_steps

from .plan import Run, drawn, drawn_short

FINDINGS = FindingTable(
    {
        "no-checkpoint": (
            "rank 0 writes no checkpoint",
            "rank 0 saves: what is not on disk is lost when the process dies",
            "at what the loop does every few steps, and on which rank",
        )
    }
)
CODES = {
    **{code: text for code, text in STEP_CODES.items() if code != "cannot-resume"},
    **WRITER_CODES,
    **FINDINGS.codes,
    "crash-loop": "a restart fails on the files that a killed run left",
    "same-order": "two epochs train the samples in the same order",
}
LOOK = "at which checkpoint is loaded, which step it holds, and where the loop continues"
MOMENTS = 12  # of the short run
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: Run) -> Body:
    """A body that trains in ``folder``, or resumes there."""
    return trains_in_steps(
        folder,
        run.steps.num_samples,
        before=list_backward,
        epochs=run.steps.epochs,
        global_batch_size=run.global_batch_size,
        checkpoint_every=run.steps.every,
        lr=run.lr,
    )


def judge_uninterrupted(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The steps of an uninterrupted run."""
    gradient = odd_net_gradient(reports)
    yield from first_of(
        whole_findings(run.steps, reports, gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
        one_writer(reports),
    )


def judge_resumed(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The restart after a kill between two saves."""
    kill = f"rank {run.killed_rank} was killed after step {run.start + 1}"
    whole = earlier["uninterrupted"]
    yield from resumption_findings(run.steps, whole, reports, [run.start], kill, LOOK)


def judge_short(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A short run, and its restarts from what kills in its saves would leave."""
    whole = run_before_restarts(reports)
    if whole:  # if not, the engine reports how it failed
        yield from first_of(
            judge_uninterrupted(run, whole, earlier),
            judge_saves(run, whole),
            judge_moments(run, whole, reports),
        )


def judge_saves(run: Run, whole: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if rank 0 saved nothing."""
    if not whole[0].answer["moments"]:
        found = f"rank 0 changed no file in {run.steps.total} steps; with "
        found += f"checkpoint_every={run.steps.every}, "
        found += f"{run.steps.total // run.steps.every} checkpoints are due"
        yield FINDINGS("no-checkpoint", found)


def judge_moments(
    run: Run, whole: Sequence[RankReport], reports: Sequence[RankReport]
) -> Iterator[Finding]:
    """The restarts from what a kill in a save would leave."""

    def judge_start(
        starts: Sequence[RankReport], allowed: Sequence[int], kill: str
    ) -> Iterator[Finding]:
        return resumption_findings(run.steps, whole, starts, allowed, kill, LOOK)

    for finding in moment_findings(run.steps, whole, reports, judge_start):
        is_crash = finding.code == "cannot-resume"
        yield finding._replace(code="crash-loop") if is_crash else finding


def scenarios(seed: int) -> list[Scenario]:
    """Kills in the saves of a short run; a run, and the same one killed between two saves."""
    run, short = drawn(seed), drawn_short(seed)

    def job(name: str, body: Body, judge: Any, of: Run = run, **rest: Any) -> Scenario:
        return Scenario(
            name=name, body=body, judge=judge, world_size=of.world_size, deadline_s=6, **rest
        )

    return [
        job(
            "killed in a save",
            killed_in_its_saves(
                "short", partial(train_in, run=short), at_most=MOMENTS, seed=seed
            ),
            partial(judge_short, short),
            short,
            judges_failures=True,
        ),
        job("uninterrupted", train_in("whole", run), partial(judge_uninterrupted, run)),
        job(
            "killed between two saves",
            train_in("killed", run),
            judge_killed,
            fault=Fault.after_step(run.start + 1, rank=run.killed_rank),
        ),
        job("resumed", train_in("killed", run), partial(judge_resumed, run)),
    ]

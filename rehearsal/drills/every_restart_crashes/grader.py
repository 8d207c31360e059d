"""The writer dies at any moment of a save, and between two saves; the job lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, FindingTable
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.saves import (
    ended_start,
    first_wrong_start,
    killed_after,
    kills_in_saves,
    start_resumes,
)
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import one_order, whole_findings
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.saves import Keep, starting_in
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
# Of the short run. The first restart, from its first save, is killed in its turn. So are three
# from later saves, in the first save of each: what the first kill has torn is still there.
WATCHED = {
    "short": Keep(first=2, later=6, between=(0,)),
    "short-killed-0-00": Keep(first=1, later=0, between=(0, 1)),
    **{
        f"short-killed-0-{number:02}": Keep(first=1, later=0, between=())
        for number in (3, 4, 5)
    },
}
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
    yield from first_of(
        whole_findings(run.steps, reports, odd_net_gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
        one_writer(reports),
    )


def judge_resumed(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The restart after a kill between two saves."""
    whole, who = earlier["uninterrupted"], f"rank {run.killed_rank} was"
    kill = killed_after(run.steps, whole, run.start + 1, who)
    yield from start_resumes(run.steps, whole, reports, kill, LOOK)


def judge_short(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A short run, and its restarts from what kills in its saves would leave."""
    whole = ended_start(reports, "short")
    if whole:  # if not, the engine reports how it failed
        yield from first_of(
            judge_uninterrupted(run, whole, earlier),
            judge_saves(run, whole),
            judge_moments(run, whole, reports),
        )


def judge_saves(run: Run, whole: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if rank 0 saved nothing."""
    if not any(event["steps"] for event in whole[0].of("saved")):
        found = f"rank 0 changed no file in {run.steps.total} steps; with "
        found += f"checkpoint_every={run.steps.every}, "
        found += f"{run.steps.total // run.steps.every} checkpoints are due"
        yield FINDINGS("no-checkpoint", found)


def judge_moments(
    run: Run, whole: Sequence[RankReport], reports: Sequence[RankReport]
) -> Iterator[Finding]:
    """The restarts from what a kill in a save would leave."""
    whole, kills = aligned(whole), kills_in_saves(run.steps, whole)
    judge_start = partial(start_resumes, run.steps, whole, look=LOOK)
    for finding in first_wrong_start(run.steps, whole, reports, kills, judge_start):
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
            starting_in(partial(train_in, run=short), lambda _: ["short"], WATCHED, seed=seed),
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

"""Killed again and again while a loader runs ahead: every sample once per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, FindingTable
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import (
    moment_findings,
    one_order,
    resumption_findings,
    whole_findings,
)
from rehearsal.kit.observe.steps import from_moments, keeping_moments, trains_in_steps

from .loading import Samples
from .plan import Run, drawn, drawn_uneven

FINDINGS = FindingTable(
    {
        "loads-in-the-trainer": (
            "the trainer's own process loads samples that are the workers' job",
            "num_workers processes load samples while the trainer's process trains",
            "at how the loader is built",
        ),
        "wrong-number-of-workers": (
            "the loader has more or fewer workers than num_workers",
            "num_workers processes load samples while the trainer's process trains",
            "at how the loader is built",
        ),
    }
)
CODES = {
    **STEP_CODES,
    **FINDINGS.codes,
    "same-order": "two epochs train the samples in the same order",
}
LOOK = "at what the saved position counts, when it advances, and who reads it"
WORKERS, MOMENTS = 2, 8  # of the uninterrupted run
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: Run, num_workers: int) -> Body:
    """A body that trains in ``folder``, or resumes there."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        made: list[Samples] = []

        def data(context: RankContext, num_samples: int) -> list[Samples]:
            made.append(Samples(context, num_samples))
            return made

        answer = trains_in_steps(
            folder,
            run.steps.num_samples,
            data=data,
            before=different_seeds,
            epochs=run.steps.epochs,
            batch_size=run.batch_size,
            checkpoint_every=run.steps.every,
            num_workers=num_workers,
            lr=run.lr,
        )(context, learner)
        return {**answer, "loaded": made[0].loaded()}

    return body


def different_seeds(context: RankContext) -> None:
    """A different random state on each rank."""
    import torch

    torch.manual_seed(context.rank)


def judge_uninterrupted(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The steps of an uninterrupted run."""
    gradient = odd_net_gradient(reports)
    yield from first_of(
        whole_findings(run.steps, reports, gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
    )


def judge_loading(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """An uninterrupted run, and which processes loaded its samples."""
    for report in reports:
        loaded = report.answer["loaded"]
        # A look at one sample is fine.
        if loaded.get("own", 0) > 1:
            found = f"num_workers={WORKERS}, but rank {report.rank}'s own process loaded "
            found += f"{loaded['own']} samples"
            yield FINDINGS("loads-in-the-trainer", found)
            return
        for kind in loaded.keys() - {"own", "other", str(WORKERS)}:
            found = f"num_workers={WORKERS}, but rank {report.rank}'s loader has {kind}"
            yield FINDINGS("wrong-number-of-workers", found)
            return
    yield from judge_uninterrupted(run, reports, earlier)


def judge_resumed(
    run: Run, number: int, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """A restart after kill ``number``, counted from 0; it may be killed in its turn."""
    start = run.starts[number]
    kill = f"all ranks were killed after step {start + 1}"
    whole = earlier["uninterrupted"]
    yield from resumption_findings(run.steps, whole, reports, [start], kill, LOOK)


def judge_again(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first restart, up to its own kill."""
    findings = list(judge_resumed(run, 0, reports, earlier))
    yield from findings or judge_killed(reports, earlier)


def judge_moments(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The restarts from what a kill in a save would leave."""
    whole = earlier["uninterrupted"]

    def judge_start(
        starts: Sequence[RankReport], allowed: Sequence[int], kill: str
    ) -> Iterator[Finding]:
        return resumption_findings(run.steps, whole, starts, allowed, kill, LOOK)

    yield from moment_findings(run.steps, whole, reports, judge_start)


def scenarios(seed: int) -> list[Scenario]:
    """An uninterrupted run, one that is killed twice, and kills in the middle of a save."""
    run, uneven = drawn(seed), drawn_uneven(seed)
    first, second = run.killed_after

    def job(name: str, body: Body, judge: Any, **rest: Any) -> Scenario:
        return Scenario(
            name=name, body=body, judge=judge, world_size=run.world_size, deadline_s=6, **rest
        )

    # Kills end every rank: a rank's loader workers would hold its sockets open, and its peers
    # would wait for it until the workers' own watchdogs wake up, after five seconds.
    whole = train_in("whole", run, WORKERS)
    return [
        job(
            "uninterrupted",
            keeping_moments(whole, "whole", at_most=MOMENTS, seed=seed),
            partial(judge_loading, run),
        ),
        job(
            "killed",
            train_in("killed", run, run.workers[0]),
            judge_killed,
            fault=Fault.after_step(first, rank=None),
        ),
        job(
            "resumed, and killed again",
            train_in("killed", run, run.workers[1]),
            partial(judge_again, run),
            fault=Fault.after_step(second, rank=None),
        ),
        job("resumed", train_in("killed", run, 0), partial(judge_resumed, run, 1)),
        job(
            "killed in a save",
            from_moments(lambda folder: train_in(folder, run, 0), "whole"),
            partial(judge_moments, run),
            judges_failures=True,
        ),
        Scenario(
            name="last batches of different sizes",
            body=train_in("uneven", uneven, 0),
            judge=partial(judge_uninterrupted, uneven),
            world_size=uneven.world_size,
            deadline_s=6,
        ),
    ]

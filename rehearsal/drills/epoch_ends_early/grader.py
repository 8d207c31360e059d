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

from .loading import Samples, loaded
from .plan import Run, drawn, drawn_short

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
    **WRITER_CODES,
    **FINDINGS.codes,
    "same-order": "two epochs train the samples in the same order",
}
LOOK = "at what the saved position counts, when it advances, and who reads it"
# Of the short run. The first restart, from its first save, is killed in its turn.
WATCHED = {"short": Keep(first=2, later=6, between=(0,))}
WATCHED |= {
    f"short-killed-{rank}-00": Keep(first=1, later=0, between=(0, 1)) for rank in (0, 1)
}
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: Run, num_workers: int) -> Body:
    """A body that trains in ``folder``, or resumes there."""
    return trains_in_steps(
        folder,
        run.steps.num_samples,
        data=lambda context, num_samples: [Samples(context, num_samples, num_workers)],
        before=before_training,
        epochs=run.steps.epochs,
        batch_size=run.batch_size,
        checkpoint_every=run.steps.every,
        num_workers=num_workers,
        lr=run.lr,
    )


def resume_at_last(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """The second restart. It also answers who loaded the samples of the killed jobs."""
    by_job = [(number, loaded(context, number)) for number in run.workers]
    return {**train_in("killed", run, 0)(context, learner), "loaded": by_job}


def before_training(context: RankContext) -> None:
    """A different random state on each rank, and folders that aren't listed in order."""
    import torch

    list_backward()
    torch.manual_seed(context.rank)


def judge_uninterrupted(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The steps of an uninterrupted run."""
    yield from first_of(
        whole_findings(run.steps, reports, odd_net_gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
        one_writer(reports),
    )


def loading_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if other processes than the loader's workers loaded a killed job's samples."""
    for report in reports:
        for num_workers, samples_by in report.answer["loaded"]:
            found = f"num_workers={num_workers}, but rank {report.rank}'s "
            # A look at one sample is fine.
            if samples_by.get("own", 0) > 1:
                found += f"own process loaded {samples_by['own']} samples"
                yield FINDINGS("loads-in-the-trainer", found)
                return
            for kind in sorted(samples_by.keys() - {"own", "other", str(num_workers)}):
                yield FINDINGS("wrong-number-of-workers", f"{found}loader has {kind}")
                return


def judge_resumed(
    run: Run, number: int, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """A restart after kill ``number``, counted from 0; it may be killed in its turn."""
    whole = earlier["uninterrupted"]
    kill = killed_after(run.steps, whole, run.starts[number] + 1)
    yield from start_resumes(run.steps, whole, reports, kill, LOOK)


def judge_again(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first restart, up to its own kill."""
    findings = list(judge_resumed(run, 0, reports, earlier))
    yield from findings or judge_killed(reports, earlier)


def judge_last(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The second restart, which ends, and the workers of the killed jobs."""
    yield from first_of(judge_resumed(run, 1, reports, earlier), loading_findings(reports))


def judge_short(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A short run, and its restarts from what kills in its saves would leave."""
    whole = ended_start(reports, "short")
    if whole:  # if not, the engine reports how it failed
        kills = kills_in_saves(run.steps, whole)
        judge_start = partial(start_resumes, run.steps, aligned(whole), look=LOOK)
        yield from first_of(
            judge_uninterrupted(run, whole, earlier),
            first_wrong_start(run.steps, aligned(whole), reports, kills, judge_start),
        )


def scenarios(seed: int) -> list[Scenario]:
    """A run, the same one killed twice, and a short one with kills in the middle of a save."""
    run, short = drawn(seed), drawn_short(seed)
    first, second = run.killed_after

    def job(name: str, body: Body, judge: Any, of: Run = run, **rest: Any) -> Scenario:
        judge = partial(judge, of)
        return Scenario(
            name=name, body=body, judge=judge, world_size=of.world_size, deadline_s=6, **rest
        )

    def killed(of: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
        return judge_killed(reports, earlier)

    # Kills end every rank: a rank's loader workers would hold its sockets open, and its peers
    # would wait for it until the workers' own watchdogs wake up, after five seconds.
    return [
        job("uninterrupted", train_in("whole", run, 0), judge_uninterrupted),
        job(
            "killed",
            train_in("killed", run, run.workers[0]),
            killed,
            fault=Fault.after_step(first, rank=None),
        ),
        job(
            "resumed, and killed again",
            train_in("killed", run, run.workers[1]),
            judge_again,
            fault=Fault.after_step(second, rank=None),
        ),
        job("resumed", partial(resume_at_last, run), judge_last),
        job(
            "killed in a save",
            starting_in(
                partial(train_in, run=short, num_workers=0),
                lambda _: ["short"],
                WATCHED,
                seed=seed,
            ),
            judge_short,
            short,
            judges_failures=True,
        ),
    ]

"""Killed and restarted, does every step draw the noise of the uninterrupted run?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.saves import (
    Kill,
    ended_start,
    first_wrong_start,
    killed_after,
    kills_in_saves,
    resumed_after,
    start_resumes,
)
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import one_order, whole_findings
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.saves import Keep, starting_in
from rehearsal.kit.observe.steps import trains_in_steps

from .noise import SCALE, NoisyNet
from .noise_findings import CODES as NOISE_CODES
from .noise_findings import noise_of, other_noise, same_noise, seedless
from .plan import Run, drawn, drawn_short

CODES = {
    **STEP_CODES,
    **WRITER_CODES,
    **NOISE_CODES,
    "same-order": "two epochs train the samples in the same order",
}
POSITION = "at the steps after which a rank saves, at which position it saves, and at "
POSITION += "which one a restart begins"
LOOK = "at what sets each rank's random state, at a start and at a restart, and at every draw "
LOOK += "from it before the first step"
# Of the short run. The first restart, from its first save, is killed in its turn.
WATCHED = {"short": Keep(first=2, later=6, between=(0,))}
WATCHED |= {
    f"short-killed-{rank}-00": Keep(first=1, later=0, between=(0, 1)) for rank in (0, 1)
}
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: Run, job: str = "") -> Body:
    """A body that trains in ``folder``, or resumes there."""

    def arbitrary_state(context: RankContext) -> None:
        import torch

        draw = random.Random(f"{run.check} {folder} {job} {context.rank}")
        torch.manual_seed(draw.getrandbits(60))
        list_backward()

    return trains_in_steps(
        folder,
        run.steps.num_samples,
        model=NoisyNet,
        before=arbitrary_state,
        epochs=run.steps.epochs,
        batch_size=run.batch_size,
        checkpoint_every=run.steps.every,
        seed=run.seed,
        lr=run.lr,
    )


def judge_uninterrupted(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """An uninterrupted run, in which no noise may repeat."""

    def offset(report: RankReport, step: int) -> list[float]:
        return [SCALE * value for value in noise_of(report)[step]]

    gradient = partial(odd_net_gradient, offset=offset)
    others = [reports for name, reports in earlier.items() if name == "uninterrupted"]
    yield from first_of(
        whole_findings(run.steps, reports, gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
        one_writer(reports),
        same_noise(reports),
        *(seedless(reports, own, (run.seed, drawn(run.check).seed)) for own in others),
    )


def judge_start_after(
    run: Run, whole: Sequence[RankReport], reports: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """What is wrong with a start after a kill. Its noise says more than its weights do."""
    findings = list(start_resumes(run.steps, whole, reports, kill, POSITION))
    start = resumed_after(whole, reports)
    if (
        start is not None
        and kill.saved <= start <= kill.done
        and (not findings or findings[0].code == "not-the-same-run")
    ):
        where = f"{kill.how}; restarted from step {start}'s checkpoint, "
        yield from first_of(
            same_noise(reports, where),
            other_noise(reports, whole, start, where, LOOK),
            findings,
        )
    else:
        yield from findings


def judge_first(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """Up to its kill, a run takes the same steps as any other with the same seed."""
    whole = earlier["uninterrupted"]
    yield from first_of(
        judge_killed(reports, earlier),
        other_noise(reports, whole, 0, "in a second run with the same seed, ", LOOK),
    )


def judge_resumed(
    run: Run, number: int, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """A restart after kill ``number``, counted from 0; it may be killed in its turn."""
    whole, who = earlier["uninterrupted"], f"rank {run.killed_ranks[number]} was"
    kill = killed_after(run.steps, whole, run.starts[number] + 1, who)
    yield from judge_start_after(run, whole, reports, kill)


def judge_again(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first restart, up to its own kill."""
    findings = list(judge_resumed(run, 0, reports, earlier))
    yield from findings or judge_killed(reports, earlier)


def judge_short(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A short run, and its restarts from what kills in its saves would leave."""
    whole = ended_start(reports, "short")
    if whole:  # if not, the engine reports how it failed
        kills = kills_in_saves(run.steps, whole)
        judge_start = partial(judge_start_after, run, aligned(whole))
        yield from first_of(
            judge_uninterrupted(run, whole, earlier),
            first_wrong_start(run.steps, aligned(whole), reports, kills, judge_start),
        )


def scenarios(seed: int) -> list[Scenario]:
    """A run, the same one killed twice, and a short one with kills in the middle of a save."""
    run, short = drawn(seed), drawn_short(seed)
    kills = [
        Fault.after_step(count, rank=rank)
        for count, rank in zip(run.killed_after, run.killed_ranks, strict=True)
    ]

    def job(name: str, body: Body, judge: Any, of: Run = run, **rest: Any) -> Scenario:
        judge = partial(judge, of)
        return Scenario(
            name=name, body=body, judge=judge, world_size=of.world_size, deadline_s=6, **rest
        )

    def resumed(number: int) -> Any:
        return lambda run, reports, earlier: judge_resumed(run, number, reports, earlier)

    return [
        job("uninterrupted", train_in("whole", run), judge_uninterrupted),
        job("killed", train_in("killed", run), judge_first, fault=kills[0]),
        job(
            "resumed, and killed again",
            train_in("killed", run, "again"),
            judge_again,
            fault=kills[1],
        ),
        job("resumed", train_in("killed", run, "at last"), resumed(1)),
        job(
            "killed in a save",
            starting_in(partial(train_in, run=short), lambda _: ["short"], WATCHED, seed=seed),
            judge_short,
            short,
            judges_failures=True,
        ),
    ]

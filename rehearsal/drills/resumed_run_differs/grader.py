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
    states_of,
    weights_by_step,
    whole_findings,
)
from rehearsal.kit.observe.killed_saves import killed_in_its_saves
from rehearsal.kit.observe.listings import list_backward
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
MOMENTS = 8  # of the short run
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

    gradient = odd_net_gradient(reports, offset)
    others = [reports for name, reports in earlier.items() if name == "uninterrupted"]
    yield from first_of(
        whole_findings(run.steps, reports, gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
        one_writer(reports),
        same_noise(reports),
        *(seedless(reports, own, (run.seed, drawn(run.check).seed)) for own in others),
    )


def resumed_step(whole: Sequence[RankReport], reports: Sequence[RankReport]) -> int | None:
    """The step of the uninterrupted run after which a start resumed; None if it's none."""
    begun = [own[0] for report in reports if (own := weights_by_step(report))]
    states = states_of(whole)
    return states.index(begun[0]) if begun and begun[0] in states else None


def judge_start_after(
    run: Run,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    allowed: Sequence[int],
    kill: str,
) -> Iterator[Finding]:
    """What is wrong with a start after a kill. Its noise says more than its weights do."""
    findings = list(resumption_findings(run.steps, whole, reports, allowed, kill, POSITION))
    start = resumed_step(whole, reports)
    if (
        start is not None
        and start in allowed
        and (not findings or findings[0].code == "not-the-same-run")
    ):
        where = f"{kill}; restarted from step {start}'s checkpoint, "
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
    start, rank = run.starts[number], run.killed_ranks[number]
    kill = f"rank {rank} was killed after step {start + 1}"
    yield from judge_start_after(run, earlier["uninterrupted"], reports, [start], kill)


def judge_again(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first restart, up to its own kill."""
    findings = list(judge_resumed(run, 0, reports, earlier))
    yield from findings or judge_killed(reports, earlier)


def judge_short(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A short run, and its restarts from what kills in its saves would leave."""
    whole = run_before_restarts(reports)
    if whole:  # if not, the engine reports how it failed
        start = partial(judge_start_after, run, whole)
        yield from first_of(
            judge_uninterrupted(run, whole, earlier),
            moment_findings(run.steps, whole, reports, start),
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
            killed_in_its_saves(
                "short", partial(train_in, run=short), at_most=MOMENTS, seed=seed
            ),
            judge_short,
            short,
            judges_failures=True,
        ),
    ]

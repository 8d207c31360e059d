"""Killed and restarted, does every step draw the noise of the uninterrupted run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.engine.reports import Fault
from rehearsal.kit.judge.findings import first_of, only_first
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_killed, judge_restart, judge_whole
from rehearsal.kit.observe.restart import Body, trains
from rehearsal.grading.verdict import Finding, Judge
from .noise import NoisyNet
from .noise_findings import CODES as NOISE_CODES
from .noise_findings import other_noise, same_noise

CODES = {**RESTART_CODES, **NOISE_CODES}
# 13 samples for each of two ranks, in batches of 3: the last batch of an epoch has one.
PLAN = RestartPlan(num_samples=26, epochs=2, steps_per_epoch=5)
POSITION = "at the steps after which a rank saves, at which position it saves, and at "
POSITION += "which one a restart begins"
LOOK = "at what sets each rank's random state, at a start and at a restart, and at every draw "
LOOK += "from it before the first step"


def train_in(run: str, every: int = 2) -> Body:
    """A body that trains in the folder of ``run``, or resumes there."""
    return trains(
        run,
        PLAN.num_samples,
        model=NoisyNet,
        before=lambda _: forget_the_seed(),
        epochs=PLAN.epochs,
        batch_size=3,
        checkpoint_every=every,
        seed=7,
        lr=0.02,
    )


def forget_the_seed() -> None:
    """The random state before the call of train differs from process to process."""
    torch.seed()


def judge_noise(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """An uninterrupted run, in which no noise may repeat."""
    yield from judge_whole(PLAN)(reports, earlier)
    yield from same_noise(reports)


def restarted(killed: str, start: int) -> Judge:
    """The judge of a restart with a checkpoint of step ``start``."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        findings = list(
            judge_restart(PLAN, "whole", POSITION, {killed: start})(reports, earlier)
        )
        if not findings or findings[0].code == "not-the-same-run":
            # The noise says more than the weights that follow from it.
            where = f"restarted after the save due at step {start}, "
            noise = (
                same_noise(reports, where),
                other_noise(reports, earlier["whole"], start, LOOK),
            )
            yield from first_of(*noise, findings)
        else:
            yield from findings

    return only_first(judge)


SCENARIOS = [
    Scenario(name="whole", body=train_in("whole"), judge=judge_noise, deadline_s=6),
    Scenario(
        name="killed",
        body=train_in("a"),
        judge=judge_killed,
        fault=Fault.after_step(3, rank=1),
        deadline_s=6,
    ),
    Scenario(name="resumed", body=train_in("a"), judge=restarted("killed", 2), deadline_s=6),
    # Now with the last checkpoint at the end of an epoch.
    Scenario(
        name="end",
        body=train_in("b", 5),
        judge=judge_killed,
        fault=Fault.after_step(6, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="from the end", body=train_in("b", 5), judge=restarted("end", 5), deadline_s=6
    ),
    Scenario(
        name="late",
        body=train_in("c", 4),
        judge=judge_killed,
        fault=Fault.after_step(9, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="resumed late", body=train_in("c", 4), judge=restarted("late", 8), deadline_s=6
    ),
]

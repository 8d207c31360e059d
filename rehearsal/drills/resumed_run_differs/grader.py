"""The noise of every step and rank, killed and restarted, is that of the undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import marked_samples
from .noise import CODES as NOISE_CODES
from .noise import NoisyNet, alike, other_noise
from rehearsal.kit.restart import CODES as RESTART_CODES
from rehearsal.kit.restart import Plan, after, judge_killed, kill, train_watched
from rehearsal.kit.restart import whole_findings
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {**RESTART_CODES, **NOISE_CODES}
# 13 samples for each of two ranks, in batches of 3: the last batch of an epoch has one.
PLAN = Plan(num_samples=26, epochs=2, steps_per_epoch=5)
LOOK = "at every draw from the random state between its restore and the first step"


def trains(run: str, every: int = 2) -> Body:
    """A body that trains in the folder of ``run``, or goes on there."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        # What was drawn before train is called is another number in each process.
        torch.seed()
        context.init_group()
        model, (inputs, targets) = NoisyNet(context), marked_samples(PLAN.num_samples)
        return train_watched(
            context,
            model,
            run,
            lambda folder: learner.train(
                model,
                inputs,
                targets,
                folder=folder,
                epochs=PLAN.epochs,
                batch_size=3,
                checkpoint_every=every,
                seed=7,
                lr=0.02,
            ),
        )

    return body


def judge_whole(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Before any restart: the run, and noise that is noise."""
    yield from whole_findings(PLAN, reports, "at what all ranks begin with")
    yield from alike(reports)


def restarted(killed: str, start: int) -> Callable[..., Iterable[Finding]]:
    """The judge of a restart with a checkpoint of step ``start``."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        findings = list(after(PLAN, "whole", LOOK, {killed: start})(reports, earlier))
        if not findings or findings[0].code == "not-the-same-run":
            # The noise tells more than the weights that come of it.
            findings = [
                *alike(reports),
                *other_noise(reports, earlier["whole"], start, LOOK),
                *findings,
            ]
        return findings[:1]

    return judge


SCENARIOS = [
    Scenario(name="whole", body=trains("whole"), judge=judge_whole, deadline_s=6),
    Scenario(name="killed", body=trains("a"), judge=judge_killed, fault=kill(3), deadline_s=6),
    Scenario(name="resumed", body=trains("a"), judge=restarted("killed", 2), deadline_s=6),
    # Now with the last checkpoint at the end of an epoch.
    Scenario(name="end", body=trains("b", 5), judge=judge_killed, fault=kill(6), deadline_s=6),
    Scenario(name="from the end", body=trains("b", 5), judge=restarted("end", 5), deadline_s=6),
    Scenario(name="late", body=trains("c", 4), judge=judge_killed, fault=kill(9), deadline_s=6),
    Scenario(
        name="resumed late", body=trains("c", 4), judge=restarted("late", 8), deadline_s=6
    ),
]

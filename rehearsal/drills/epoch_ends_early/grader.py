"""Killed again and again while a loader runs ahead: every sample once per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_killed, judge_restart, judge_whole
from rehearsal.kit.observe.restart import Body, trains
from rehearsal.kit.observe.samples import marked_samples
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding

CODES = RESTART_CODES | {
    "loads-in-the-trainer": "the trainer's own process loads samples that are the workers' job"
}
# 13 samples for each of two ranks, in batches of 3: the last batch of an epoch has one.
NUM_SAMPLES, BATCH_SIZE, EPOCHS, EVERY = 26, 3, 2, 2
PLAN = RestartPlan(num_samples=NUM_SAMPLES, epochs=EPOCHS, steps_per_epoch=5)
PLAN_OF_THREE = RestartPlan(num_samples=NUM_SAMPLES, epochs=EPOCHS, steps_per_epoch=3)
LOOK = "at what the saved position counts, when it advances, and who reads it"


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Records what the trainer's own process loads; a worker's records never arrive."""

    def __init__(self, context: RankContext, num_samples: int) -> None:
        self.inputs, self.targets = marked_samples(num_samples)
        self.context = context

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.context.record("fetched")
        return self.inputs[index], self.targets[index]


def job(run: str, num_workers: int) -> Body:
    """A body that trains in the folder of ``run``, or resumes there."""
    return trains(
        run,
        NUM_SAMPLES,
        data=lambda context, num_samples: [Samples(context, num_samples)],
        before=seed,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        checkpoint_every=EVERY,
        num_workers=num_workers,
        lr=0.02,
    )


def seed(context: RankContext) -> None:
    """A different random state on each rank."""
    torch.manual_seed(context.rank)


def judge_loading(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """An uninterrupted run, and which process loaded its samples."""
    yield from judge_whole(PLAN)(reports, earlier)
    for report in reports:
        fetched = len(report.of("fetched"))
        if fetched >= NUM_SAMPLES // 2:
            yield Finding(
                "loads-in-the-trainer",
                f"num_workers=1, but rank {report.rank}'s own process loaded {fetched} samples",
                "num_workers processes load samples while the trainer's process trains",
                "at how the loader is built",
            )
            return


def kill(step: int) -> Fault:
    """End every rank after its ``step``-th optimizer step.

    Not one rank: its loader workers would hold its sockets open, and the others would wait for
    it until the workers' own watchdogs wake up, after five seconds.
    """
    return Fault.after_step(step, rank=None)


SCENARIOS = [
    Scenario(name="whole", body=job("whole", 1), judge=judge_loading, deadline_s=6),
    Scenario(name="killed", body=job("a", 1), judge=judge_killed, fault=kill(3), deadline_s=6),
    # Near the end of an epoch, the loader has less to prefetch.
    Scenario(name="again", body=job("a", 1), judge=judge_killed, fault=kill(3), deadline_s=6),
    Scenario(
        name="resumed",
        body=job("a", 0),
        deadline_s=6,
        judge=judge_restart(PLAN, "whole", LOOK, {"killed": 2, "again": 2}),
    ),
    Scenario(
        name="three",
        body=job("b", 0),
        judge=judge_killed,
        world_size=3,
        fault=kill(5),
        deadline_s=6,
    ),
    Scenario(
        name="three resumed",
        body=job("b", 0),
        world_size=3,
        deadline_s=6,
        judge=judge_restart(PLAN_OF_THREE, "", LOOK, {"three": 4}),
    ),
]

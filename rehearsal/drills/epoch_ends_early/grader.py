"""Killed again and again while a loader runs ahead: every sample once per epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import OddNet, marked_samples
from rehearsal.kit.restart import CODES as RESTART_CODES
from rehearsal.kit.restart import Plan, after, judge_killed, train_watched, whole_findings
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding

CODES = RESTART_CODES | {
    "loads-by-itself": "the trainer's own process loads samples that workers were asked to load"
}
# 13 samples for each of two ranks, in batches of 3: the last batch of an epoch has one.
NUM_SAMPLES, BATCH_SIZE, EPOCHS, EVERY = 26, 3, 2, 2
PLAN = Plan(num_samples=NUM_SAMPLES, epochs=EPOCHS, steps_per_epoch=5)
PLAN_OF_THREE = Plan(num_samples=NUM_SAMPLES, epochs=EPOCHS, steps_per_epoch=3)
LOOK = "at what the saved position counts, and at which moment"


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Tells when it is asked in the trainer's process; a worker's records do not arrive."""

    def __init__(self, context: RankContext) -> None:
        self.inputs, self.targets = marked_samples(NUM_SAMPLES)
        self.context = context

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.context.record("fetched")
        return self.inputs[index], self.targets[index]


def trains(run: str, num_workers: int) -> Body:
    """A body that trains in the folder of ``run``, or goes on there."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        torch.manual_seed(context.rank)
        context.init_group()
        model, dataset = OddNet(seed=context.rank), Samples(context)
        return train_watched(
            context,
            model,
            run,
            lambda folder: learner.train(
                model,
                dataset,
                folder=folder,
                epochs=EPOCHS,
                batch_size=BATCH_SIZE,
                checkpoint_every=EVERY,
                num_workers=num_workers,
                lr=0.02,
            ),
        )

    return body


def judge_whole(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Before any restart."""
    yield from whole_findings(PLAN, reports, "at where an epoch begins and ends")
    for report in reports:
        fetched = len(report.of("fetched"))
        if fetched >= NUM_SAMPLES // 2:
            yield Finding(
                "loads-by-itself",
                f"num_workers=1, and rank {report.rank}'s own process loaded {fetched} samples",
                "loading overlaps with training in as many workers as were asked for",
                "at how the loader is built",
            )
            return


def kill(step: int) -> Fault:
    """End every rank after its ``step``-th optimizer step.

    Not one rank: its loader workers would hold its sockets open, and the others would wait for
    it until the workers' own watchdogs wake up, after five seconds.
    """
    return Fault(rank=None, at="optimizer_step", count=step)


SCENARIOS = [
    Scenario(name="whole", body=trains("whole", 1), judge=judge_whole, deadline_s=6),
    Scenario(
        name="killed", body=trains("a", 1), judge=judge_killed, fault=kill(3), deadline_s=6
    ),
    # Near the end of an epoch the loader cannot run as far ahead as elsewhere.
    Scenario(
        name="again", body=trains("a", 1), judge=judge_killed, fault=kill(3), deadline_s=6
    ),
    Scenario(
        name="resumed",
        body=trains("a", 0),
        deadline_s=6,
        judge=after(PLAN, "whole", LOOK, {"killed": 2, "again": 2}),
    ),
    Scenario(
        name="three",
        body=trains("b", 0),
        judge=judge_killed,
        world_size=3,
        fault=kill(5),
        deadline_s=6,
    ),
    Scenario(
        name="three resumed",
        body=trains("b", 0),
        world_size=3,
        deadline_s=6,
        judge=after(PLAN_OF_THREE, "", LOOK, {"three": 4}),
    ),
]

"""Restarted on fewer ranks, on more, and on fewer again: the same samples in each step?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_killed, judge_restart, judge_whole
from rehearsal.kit.observe.restart import Body, trains
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, Judge, counted

CODES = {
    **RESTART_CODES,
    "batch-follows-world-size": "the samples in a step depend on the number of ranks",
}
# Three full steps of 6, and one of 2: with three ranks, one of them gets no sample.
PLAN = RestartPlan(num_samples=20, epochs=3, steps_per_epoch=4)
GLOBAL_BATCH_SIZE, EVERY = 6, 2
LOOK = "at the steps after which rank 0 saves, and at what is saved and read back: does the "
LOOK += "position mean the same to more or fewer ranks?"
WEIGHTS = (
    "at everything that is saved, at which ranks restore it, and at what a step divides by "
)
WEIGHTS += "on more or fewer ranks"
WHOLE = judge_whole(PLAN)


def train_in(run: str) -> Body:
    """A body that trains in the folder of ``run``, or resumes there, on any number of ranks."""
    return trains(
        run,
        PLAN.num_samples,
        epochs=PLAN.epochs,
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_every=EVERY,
        lr=0.01,
    )


def restarted(*before: tuple[str, int]) -> Judge:
    """The judge of the restart after the scenarios ``before``, with the steps that survive."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        sizes = [len(samples) for samples in samples_by_step(reports)]
        if sizes and max(sizes) != GLOBAL_BATCH_SIZE:
            yield Finding(
                "batch-follows-world-size",
                f"after the restart on {counted(len(reports), 'rank')}, the largest step had "
                f"{counted(max(sizes), 'sample')}; global_batch_size={GLOBAL_BATCH_SIZE}",
                "the global batch has the same size on any number of ranks",
                "at how a rank's share of a step depends on the number of ranks",
            )
            return
        # A different number of ranks adds in a different order: equal up to float rounding.
        resumed = judge_restart(PLAN, "whole", LOOK, dict(before), tolerance=1e-5)
        for finding in resumed(reports, earlier):
            is_weights = finding.code == "not-the-same-run"
            yield finding._replace(look=WEIGHTS) if is_weights else finding

    return judge


def job(name: str, run: str, world_size: int, kill: int) -> Scenario:
    """A job on ``world_size`` ranks that dies after its ``kill``-th optimizer step."""
    fault = Fault.after_step(kill, rank=world_size - 1)
    return Scenario(
        name=name,
        body=train_in(run),
        judge=judge_killed,
        world_size=world_size,
        fault=fault,
        deadline_s=6,
    )


def last(name: str, run: str, world_size: int, *before: tuple[str, int]) -> Scenario:
    """The job that resumes after ``before`` and runs to the end."""
    return Scenario(
        name=name,
        body=train_in(run),
        judge=restarted(*before),
        world_size=world_size,
        deadline_s=6,
    )


SCENARIOS = [
    Scenario(name="whole", body=train_in("whole"), judge=WHOLE, deadline_s=6),
    job("two", "a", 2, kill=3),
    last("two, then one", "a", 1, ("two", 2)),
    job("one", "b", 1, kill=3),
    last("one, then two", "b", 2, ("one", 2)),
    # Killed in the second epoch, then resized once more.
    job("three", "c", 3, kill=7),
    job("three, then two", "c", 2, kill=3),
    last("three, two, one", "c", 1, ("three", 6), ("three, then two", 2)),
    job("one again", "d", 1, kill=7),
    last("one, then three", "d", 3, ("one again", 6)),
]

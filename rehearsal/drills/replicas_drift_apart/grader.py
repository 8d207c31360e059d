"""Nodes lose their disks, or die before they save: all ranks resume from the same step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.engine.reports import Fault
from rehearsal.kit.judge.coverage import most_steps
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_killed, judge_restart, judge_whole
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.restart import Body, trains
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, Judge

CODES = {
    **RESTART_CODES,
    "ranks-resume-apart": "after a restart, the ranks begin with different weights",
    "reads-another-nodes-disk": "a rank opens a file on another node's disk",
}
PLAN = RestartPlan(num_samples=23, epochs=2, steps_per_epoch=5)
GLOBAL_BATCH_SIZE, EVERY = 5, 2
LOOK = "at who decides which step the job resumes from, and how the others learn of it"
POSITION = (
    "at the steps after which a rank saves, which step a checkpoint holds, and where the "
)
POSITION += "loop continues"
WHOLE = judge_whole(PLAN)


def train_in(run: str, lost: Sequence[int] = ()) -> Body:
    """A body that trains with a disk per rank; the ranks in ``lost`` have a new, empty one."""

    def prepare(context: RankContext) -> None:
        disks = context.folder / run
        if context.rank in lost:
            for path in (disks / f"node-{context.rank}").iterdir():
                path.unlink()
        record_foreign_files(context, disks)

    return trains(
        f"{run}/node-{{rank}}",
        PLAN.num_samples,
        before=prepare,
        epochs=PLAN.epochs,
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_every=EVERY,
        lr=0.02,
    )


def record_foreign_files(context: RankContext, disks: Path) -> None:
    """Record as "foreign" what is opened below ``disks``, but not on this rank's own."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.abspath(arguments[0])
            if path.startswith(f"{disks}/") and f"/node-{context.rank}/" not in path:
                context.record("foreign", path=path.removeprefix(f"{disks}/"))

    sys.addaudithook(watch)


def apart(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """Findings about how the ranks of a restart begin; the job may have failed."""
    for report in reports:
        if paths := [event["path"] for event in report.of("foreign")]:
            yield Finding(
                "reads-another-nodes-disk",
                f"rank {report.rank} opened {paths[0]}, which is not on its own node's disk",
                "each node sees only its own disk; ranks exchange state through collectives",
                "at where a rank looks for checkpoints",
            )
            return
    began = [report.of("first_forward") for report in reports]
    for rank, events in enumerate(began[1:], 1):
        if not began[0] or not events:
            continue
        difference, name = largest_difference(began[0][0]["weights"], events[0]["weights"])
        if difference != 0:
            *some, last = (str(len(report.of("optimizer_step"))) for report in reports)
            yield Finding(
                "ranks-resume-apart",
                f"after the restart, ranks 0 and {rank} of {len(reports)} began with weights "
                f"that differ by up to {difference:.2g}, in {name}; the ranks then took "
                f"{', '.join(some)} and {last} steps",
                "ranks that average their gradients have the same weights and are at the same "
                "step",
                LOOK,
            )
            return


def restarted(*starts: int, killed: str, whole: str = "") -> Judge:
    """The judge of a restart that may resume from any of the steps in ``starts``."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        findings = list(apart(reports))
        yield from findings
        if findings or any(report.failure or not report.has_answer for report in reports):
            return
        start = PLAN.steps - most_steps(reports)
        start = start if start in starts else starts[0]
        for finding in judge_restart(PLAN, whole, LOOK, {killed: start})(reports, earlier):
            is_count = finding.code in ("never-trained", "trained-twice")
            yield finding._replace(look=POSITION) if is_count else finding

    return judge


SCENARIOS = [
    Scenario(name="whole", body=train_in("whole"), judge=WHOLE, deadline_s=6),
    Scenario(
        name="killed",
        body=train_in("a"),
        judge=judge_killed,
        fault=Fault.after_step(5, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="node 1 replaced",
        body=train_in("a", [1]),
        judges_failures=True,
        deadline_s=6,
        judge=restarted(4, killed="killed", whole="whole"),
    ),
    # Rank 1 dies before it saves step 4; rank 0 may have saved it.
    Scenario(
        name="early",
        body=train_in("b"),
        judge=judge_killed,
        fault=Fault.after_step(4, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="one is ahead",
        body=train_in("b"),
        judges_failures=True,
        deadline_s=6,
        judge=restarted(4, 2, killed="early", whole="whole"),
    ),
    Scenario(
        name="three",
        body=train_in("c"),
        judge=judge_killed,
        world_size=3,
        fault=Fault.after_step(5, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="nodes 0 and 1 replaced",
        body=train_in("c", [0, 1]),
        judges_failures=True,
        world_size=3,
        deadline_s=6,
        judge=restarted(4, killed="three"),
    ),
]

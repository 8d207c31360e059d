"""Nodes lose their disks, or die before they have saved: all ranks go on from one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import OddNet, largest_difference, marked_samples
from rehearsal.kit.restart import CODES as RESTART_CODES
from rehearsal.kit.restart import Plan, after, judge_killed, kill, steps_taken
from rehearsal.kit.restart import tell_foreign_files, train_watched, whole_findings
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    **RESTART_CODES,
    "ranks-apart": "after a restart the ranks take their first step with different weights",
    "reads-another-nodes-disk": "a rank opens a file that lies on another node",
}
PLAN = Plan(num_samples=23, epochs=2, steps_per_epoch=5)
GLOBAL_BATCH_SIZE, EVERY = 5, 2
LOOK = "at who decides from which step the job goes on, and how the others learn of it"


def trains(run: str, lost: Sequence[int] = ()) -> Body:
    """A body that trains with a disk per rank; the ranks in ``lost`` have a new, empty one."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        model, (inputs, targets) = OddNet(seed=context.rank), marked_samples(PLAN.num_samples)
        disks = context.folder / run
        if context.rank in lost:
            for path in (disks / f"node-{context.rank}").iterdir():
                path.unlink()

        tell_foreign_files(context, disks)
        return train_watched(
            context,
            model,
            f"{run}/node-{context.rank}",
            lambda folder: learner.train(
                model,
                inputs,
                targets,
                folder=folder,
                epochs=PLAN.epochs,
                global_batch_size=GLOBAL_BATCH_SIZE,
                checkpoint_every=EVERY,
                lr=0.02,
            ),
        )

    return body


def judge_whole(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Before any restart."""
    return whole_findings(PLAN, reports, "at what all ranks begin with")


def apart(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """Findings about how the ranks of a restart begin; the job may have failed."""
    for report in reports:
        if paths := [event["path"] for event in report.of("foreign")]:
            yield Finding(
                "reads-another-nodes-disk",
                f"rank {report.rank} opens {paths[0]}",
                "a node's disk is seen by that node only; ranks meet in collectives",
                "at where a rank looks for checkpoints",
            )
            return
    began = [report.of("first_forward") for report in reports]
    for rank, events in enumerate(began[1:], 1):
        if not began[0] or not events:
            continue
        difference, name = largest_difference(began[0][0]["weights"], events[0]["weights"])
        if difference != 0:
            steps = ", ".join(str(len(report.of("optimizer_step"))) for report in reports)
            yield Finding(
                "ranks-apart",
                f"after the restart ranks 0 and {rank} of {len(reports)} take their first step "
                f"with weights up to {difference:.2g} apart in {name}; the ranks then take "
                f"{steps} steps",
                "ranks that average their gradients hold the same weights and stand at the "
                "same step",
                LOOK,
            )
            return


def judge(*starts: int, killed: str, whole: str = "") -> Any:
    """The judge of a restart that may go on from one of ``starts``."""

    def judge_restart(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        findings = list(apart(reports))
        yield from findings
        if findings or any(report.failure or not report.has_answer for report in reports):
            return
        start = PLAN.steps - steps_taken(reports)
        start = start if start in starts else starts[0]
        yield from after(PLAN, whole, LOOK, {killed: start})(reports, earlier)

    return judge_restart


SCENARIOS = [
    Scenario(name="whole", body=trains("whole"), judge=judge_whole, deadline_s=6),
    Scenario(name="killed", body=trains("a"), judge=judge_killed, fault=kill(5), deadline_s=6),
    Scenario(
        name="node 1 replaced",
        body=trains("a", [1]),
        judges_failures=True,
        deadline_s=6,
        judge=judge(4, killed="killed", whole="whole"),
    ),
    # Rank 1 dies before it saves step 4; rank 0 may have saved it.
    Scenario(name="early", body=trains("b"), judge=judge_killed, fault=kill(4), deadline_s=6),
    Scenario(
        name="one is ahead",
        body=trains("b"),
        judges_failures=True,
        deadline_s=6,
        judge=judge(4, 2, killed="early", whole="whole"),
    ),
    Scenario(
        name="three",
        body=trains("c"),
        judge=judge_killed,
        world_size=3,
        fault=kill(5),
        deadline_s=6,
    ),
    Scenario(
        name="nodes 0 and 1 replaced",
        body=trains("c", [0, 1]),
        judges_failures=True,
        world_size=3,
        deadline_s=6,
        judge=judge(4, killed="three"),
    ),
]

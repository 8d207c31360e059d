"""Nodes lose their disks, or die before they save: all ranks resume from the same step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import one_order, resumption_findings, starts_of, whole_findings
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.restart import odd_net
from rehearsal.kit.observe.saves import starting_in
from rehearsal.kit.observe.steps import trains_in_steps

from .disks import Snapshots, watch_disks
from .plan import Run, drawn

CODES = {
    **{code: text for code, text in STEP_CODES.items() if code != "cannot-resume"},
    "ranks-resume-apart": "after a restart, the ranks begin with different weights",
    "reads-another-nodes-disk": "a rank opens a file on another node's disk",
    "same-order": "two epochs train the samples in the same order",
}
LOOK = "at who decides which step the job resumes from, and how the others learn of it"
POSITION = (
    "at the steps after which a rank saves, which step a checkpoint holds, and where the "
    "loop continues"
)
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: Run, model: Any = odd_net) -> Body:
    """A body that trains with a disk per rank."""
    return trains_in_steps(
        f"{folder}/node-{{rank}}",
        run.steps.num_samples,
        model=model,
        before=watch_disks,
        epochs=run.steps.epochs,
        global_batch_size=run.global_batch_size,
        checkpoint_every=run.steps.every,
        lr=run.lr,
    )


def run_whole(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """The uninterrupted run, and what nodes that stopped at different steps would have."""
    snapshots = Snapshots(context, f"whole/node-{context.rank}")
    answer = train_in("whole", run, snapshots.net)(context, learner)
    snapshots.keep(run)
    return answer


def run_replaced(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """The restart of the killed job; some nodes have a new, empty disk."""
    if context.rank in run.lost:
        for path in (context.folder / "killed" / f"node-{context.rank}").iterdir():
            path.unlink()
    return train_in("killed", run)(context, learner)


def judge_uninterrupted(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The steps of an uninterrupted run."""
    yield from first_of(
        foreign(reports),
        whole_findings(run.steps, reports, odd_net_gradient, run.lr),
        one_order(run.steps, reports, "same-order"),
    )


def foreign(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank opened another one's file."""
    for report in reports:
        if paths := [event["path"] for event in report.of("foreign")]:
            yield Finding(
                "reads-another-nodes-disk",
                f"rank {report.rank} opened {paths[0]}, which is not on its own node's disk",
                "each node sees only its own disk; ranks exchange state through collectives",
                "at where a rank looks for checkpoints",
            )
            return


def apart(reports: Sequence[RankReport], disks: str) -> Iterator[Finding]:
    """A finding if the ranks of a restart begin with different weights; it may have failed."""
    began = [report.of("first_forward") for report in reports]
    for rank, events in enumerate(began[1:], 1):
        if not began[0] or not events:
            continue
        difference, name = largest_difference(began[0][0]["weights"], events[0]["weights"])
        if difference != 0:
            *some, last = (str(len(report.of("optimizer_step"))) for report in reports)
            found = f"{disks}; after the restart, ranks 0 and {rank} of {len(reports)} began "
            found += (
                f"with weights that differ by up to {difference:.2g}, in {name}; the ranks "
            )
            found += f"then took {', '.join(some)} and {last} steps"
            yield Finding(
                "ranks-resume-apart",
                found,
                "ranks that average their gradients have the same weights and are at the same "
                "step",
                LOOK,
            )
            return


def judge_start_after(
    run: Run, whole: Sequence[RankReport], starts: Sequence[RankReport], newest: int, disks: str
) -> Iterator[Finding]:
    """What is wrong with a restart that should resume after step ``newest``."""
    findings = list(first_of(foreign(starts), apart(starts, disks)))
    yield from findings
    if findings or not all(start.answer for start in starts):
        return
    for finding in resumption_findings(run.steps, whole, starts, [newest], disks, LOOK):
        is_count = finding.code in ("never-trained", "trained-twice")
        yield finding._replace(look=POSITION) if is_count else finding


def judge_replaced(
    run: Run, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The restart of the killed job."""
    lost = " and ".join(f"rank {rank}'s" for rank in run.lost)
    disks = f"the run was killed after step {run.start + 1}, and {lost} new disk is empty"
    yield from judge_start_after(run, earlier["uninterrupted"], reports, run.start, disks)


def judge_disks(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The restarts on other disks."""
    by_rank = [starts_of(report) for report in reports]
    for number, steps in enumerate(run.disks):
        starts = [own[f"disks-{number}"] for own in by_rank if f"disks-{number}" in own]
        newest = [0 if step is None else step for step in steps]
        has = [
            f"rank {rank}'s disk {f'has step {step}' if step else 'is empty'}"
            for rank, step in enumerate(newest)
        ]
        if len(starts) < len(reports):
            return
        whole, disks = earlier["uninterrupted"], ", ".join(has)
        findings = list(judge_start_after(run, whole, starts, max(newest), disks))
        yield from findings
        if findings or not all(start.answer for start in starts):
            return  # the engine reports a start that failed


def scenarios(seed: int) -> list[Scenario]:
    """A run, one that is killed and loses disks, and restarts on disks that differ."""
    run = drawn(seed)

    def job(name: str, body: Body, judge: Any, **rest: Any) -> Scenario:
        return Scenario(
            name=name, body=body, judge=judge, world_size=run.world_size, deadline_s=6, **rest
        )

    replaced = partial(run_replaced, run)
    differ = starting_in(
        partial(train_in, run=run), lambda _: [f"disks-{n}" for n in range(len(run.disks))]
    )
    return [
        job("uninterrupted", partial(run_whole, run), partial(judge_uninterrupted, run)),
        job(
            "killed",
            train_in("killed", run),
            judge_killed,
            fault=Fault.after_step(run.start + 1, rank=run.killed_rank),
        ),
        job("nodes replaced", replaced, partial(judge_replaced, run), judges_failures=True),
        job("disks differ", differ, partial(judge_disks, run), judges_failures=True),
    ]

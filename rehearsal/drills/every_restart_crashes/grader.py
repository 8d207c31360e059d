"""The writer dies in the middle of a write and between two file operations; the job lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport, killed
from rehearsal.kit.judge.coverage import most_steps
from rehearsal.kit.judge.findings import nothing_to_judge
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_restart, judge_whole
from rehearsal.kit.observe.restart import Body, trains
from .strike import WRITES, strike
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, Judge, counted, shortened

CODES = {
    **RESTART_CODES,
    "crash-loop": "a restart fails on the files that a killed run left",
    "no-checkpoint": "rank 0 writes fewer files than checkpoints are due",
}
PLAN = RestartPlan(num_samples=23, epochs=2, steps_per_epoch=5)
GLOBAL_BATCH_SIZE, EVERY = 5, 2
POSITION = "at which checkpoint is loaded, which step it holds, and where the loop continues"
LOOK = "at which files are in the folder, under which names, at each moment of a save, and at "
LOOK += "what a start reads"


def train_in(run: str, count: int = 0, data: bytes | None = None) -> Body:
    """A body that trains in the folder of ``run``, or resumes there; rank 0 may be struck."""

    def prepare(context: RankContext) -> None:
        if count and context.rank == 0:
            strike(context, count, data)

    return trains(
        run,
        PLAN.num_samples,
        before=prepare,
        epochs=PLAN.epochs,
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_every=EVERY,
        lr=0.02,
    )


def judge_saves(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """An uninterrupted run, and how many files it wrote."""
    findings = list(judge_whole(PLAN)(reports, earlier))
    yield from findings
    if findings:
        return
    files = reports[0].of("file")
    writes = [event for event in files if event["op"] in WRITES and event["path"]]
    if len(writes) < PLAN.steps // EVERY:
        yield Finding(
            "no-checkpoint",
            f"rank 0 wrote {counted(len(writes), 'file')} in {PLAN.steps} steps; with "
            f"checkpoint_every={EVERY}, {PLAN.steps // EVERY} checkpoints are due",
            "rank 0 saves: what is not on disk is lost when the process dies",
            "at what the loop does every few steps, and on which rank",
        )


def restarted(name: str) -> Judge:
    """The judge of a restart after the scenario ``name``."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        writer = earlier[name][0]
        if not killed(writer):
            return  # this design has no such moment to be killed in
        in_step = len(writer.of("optimizer_step"))
        failures = [report.failure for report in reports if report.failure]
        if failures and failures[0]:
            last = writer.of("file")[-1]
            yield Finding(
                "crash-loop",
                f"rank 0 was killed {'in' if last['op'] in WRITES else 'right before'} "
                f"{last['op']} of {name_of(last)}, after {counted(in_step, 'step')}; then the "
                f"restart failed with {failures[0].kind}: "
                f"{shortened(failures[0].message.split('. ')[0], 120)}",
                "a kill costs at most the steps since the last checkpoint; each restart finds "
                "an intact checkpoint, or none",
                f"at {failures[0].where}, and {LOOK}" if failures[0].where else LOOK,
            )
        elif all(report.has_answer for report in reports):
            # The interrupted save may count, if it was as good as complete. So may one that was
            # not due.
            start = PLAN.steps - most_steps(reports)
            due = max(0, in_step - 1) // EVERY * EVERY
            start = start if start >= due and start in saved_steps(writer) else due
            whole = "whole" if len(reports) == 2 else ""
            judge_it = judge_restart(PLAN, whole, LOOK, {name: start})
            for finding in judge_it(reports, earlier):
                is_count = finding.code in ("never-trained", "trained-twice")
                yield finding._replace(look=POSITION) if is_count else finding

    return judge


def saved_steps(report: RankReport) -> set[int]:
    """After how many optimizer steps a rank wrote files."""
    steps, kinds = set[int](), [event["kind"] for event in report.events]
    for at, event in enumerate(report.events):
        if event["kind"] == "file" and event["op"] in WRITES and event["path"]:
            steps.add(kinds[:at].count("optimizer_step"))
    return steps


def name_of(file: Mapping[str, str]) -> str:
    """A file's path within the folder that ``train`` was given."""
    return file["path"].partition("/")[2]


def pair(run: str, count: int, data: bytes | None, world_size: int = 2) -> list[Scenario]:
    """A run that is struck, and its restart."""
    # Rank 0 ends itself; the fault, which never comes, tells the engine to expect it.
    fault = Fault(rank=0, at="struck", count=1)
    return [
        Scenario(
            name=run,
            body=train_in(run, count, data),
            judge=nothing_to_judge,
            fault=fault,
            world_size=world_size,
            deadline_s=6,
        ),
        Scenario(
            name=f"{run}, restarted",
            body=train_in(run),
            judge=restarted(run),
            judges_failures=True,
            world_size=world_size,
            deadline_s=6,
        ),
    ]


SCENARIOS = [
    Scenario(name="whole", body=train_in("whole"), judge=judge_saves, deadline_s=6),
    *pair("second write", 2, b"PK\3\4" + bytes(500)),
    *pair("first write", 1, b""),
    *pair("third write", 3, b"PK\3\4", world_size=3),
    *pair("third change", 3, None),
]

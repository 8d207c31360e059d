"""Killed at one file operation, then at the next: does each new job resume where it must?"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport, killed
from rehearsal.kit.judge.coverage import steps_in_stream
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import differs_from_one_run
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of
from rehearsal.kit.observe.stream import SampleStream
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, counted, is_echo, listed, shortened

CODES = {
    "never-saves": "no checkpoint is written",
    "unreadable-checkpoint": "after a kill, the next start cannot load what it finds",
    "lost-progress": "after a kill, a complete checkpoint is gone",
    "ranks-resume-apart": "the ranks of a job resume from different steps",
    "skips-a-step": "a step is never trained",
    "keeps-too-many": "more than keep checkpoints remain",
    "keeps-too-few": "fewer than keep checkpoints remain, or not the newest",
    "not-the-same-run": "killed and resumed, the run ends with different weights",
}
STREAM = SampleStream(steps=20)


def body_with(name: str, keep: int) -> Body:
    """A body that trains in a folder of that name."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        folder = run_folder(context, name)
        if context.rank == 0:
            context.record("held", steps=complete_steps(folder))
        model = OddNet()
        watch_samples(context, model)
        shares = STREAM.shares(context.rank, context.world_size)
        learner.train(model, shares, folder, lr=STREAM.lr, keep=keep)
        return {
            "weights": weights_of(model),
            "expected": STREAM.expected(context.world_size),
            "files": [path.name for path in folder.glob("step-*.pt")],
        }

    return body


def complete_steps(folder: Path) -> list[int]:
    """The N of each ``step-N.pt`` that torch can load."""
    steps = []
    for path in folder.glob("step-*.pt"):
        if match := re.fullmatch(r"step-(\d+)\.pt", path.name):
            with contextlib.suppress(Exception):
                torch.load(path)
                steps.append(int(match[1]))
    return steps


def judge_start(
    reports: Sequence[RankReport], chain: Sequence[Sequence[RankReport]]
) -> Iterable[Finding]:
    """Where a job began, against where the jobs before it were killed."""
    steps = [steps_in_stream(report, len(reports), STREAM.share) for report in reports]
    # A step's forward pass shows that the save of the previous step was complete.
    before = [steps_in_stream(job[0], len(job), STREAM.share) for job in chain]
    done = max((step for of_job in before for step in of_job), default=0)
    held = [step for event in reports[0].of("held") for step in event["steps"]]
    newest = max(held, default=0)
    files = [file for job in chain[-1:] for file in job[0].of("file") if file["path"]]
    operations = []
    for file in files[-3:]:
        place = Path(file["path"])
        name = place.name if len(place.parts) > 1 else "the folder"
        operations.append(f"{file['op']} {name}")
    last = "; ".join(operations)
    # "At" the last: right before it, or (at="torn") with half of its file written.
    # The step after the last complete save may be done as well, and its save begun.
    when = f"with at least {counted(done, 'step')} completed"
    when = when if done else "before its second step"
    where = f"a job was killed {when}, at the last of these file operations: {last}. The next "
    where += "job "
    if chain and not killed(chain[-1][0]):
        where = "a job ran to its end. The next job "
    where = where if chain else "in an empty folder, the first job "
    for report in reports:
        if chain and report.failure and not is_echo(report) and not steps[report.rank]:
            failure = f"{report.failure.kind}: {shortened(report.failure.message, 120)}"
            rule = "what a kill leaves behind never makes the next start fail"
            look = "at the names under which files are written, and looked for"
            gone = [file["path"] for file in reports[0].of("file") if file["op"] == "remove"]
            if any(path in report.failure.message for path in gone):
                rule = "a checkpoint stays until every rank has loaded it or a newer one"
                look = "at what keeps rank 0 from deleting a file that another rank needs"
            at = report.failure.where
            is_typo = report.failure.kind in ("NameError", "UnboundLocalError")
            look = f"at {at}" + f", and {look}" * (not is_typo) if at else look
            found = f"{where}failed on rank {report.rank}: {failure}"
            yield Finding("unreadable-checkpoint", found, rule, look)
            return
    if not steps[0] and not reports[0].has_answer:
        return  # killed before its first step
    starts = [own[0] if own else STREAM.steps for own in steps]
    text, look = f"{where}began at step", "at what the folder holds between two operations"
    if starts[0] < newest:
        found = f"{text} {starts[0]}, although the folder held an intact step-{newest}.pt"
        rule = "a job resumes from the newest step-N.pt, after N steps"
        look = "at which step is saved under which number, and at what a start looks for and "
        look += "restores"
        yield Finding("lost-progress", found, rule, look)
    elif starts[0] < done:
        rule = "every step is saved, and a kill loses no completed save"
        look = f"at which step is saved under which number, and {look}"
        yield Finding("lost-progress", f"{text} {starts[0]}", rule, look)
    elif all(steps) and len(set(starts)) > 1:
        ranks = [f"step {start} on rank {rank}" for rank, start in enumerate(starts)]
        found = f"{where}began at {listed(ranks)}"
        rule = "all ranks resume from the same step"
        yield Finding("ranks-resume-apart", found, rule, "at which ranks load the checkpoint")
    elif starts[0] > done + 1:
        rule = "a checkpoint's step is the number of completed steps"
        look = "at the step number in a checkpoint, and at which step comes next"
        look = look if steps[0] else "at what the loop goes over, and at what ends it"
        found = f"{text} {starts[0]}" if steps[0] else f"{where}trained no samples on rank 0"
        yield Finding("skips-a-step", found, rule, look)


def scenario(number: int, fault: Fault | None) -> Scenario:
    """A job that resumes from what its predecessor left; killed, unless it is the last."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        yield from judge_start(reports, list(earlier.values()))
        # A save through a file object cannot be torn; it is killed at other operations.
        was_due = fault is not None and fault.at != "torn" and not killed(reports[0])
        if was_due and reports[0].has_answer:
            steps = steps_in_stream(reports[0], len(reports), STREAM.share)
            if steps and steps[-1] + 1 < STREAM.steps:
                text = f"rank 0's last step was step {steps[-1]}, counted from 0; a run has "
                text += f"{STREAM.steps} steps"
                rule = "every step that shares yields is trained"
                yield Finding("skips-a-step", text, rule, "at what ends the loop")
                return
            files = [file for file in reports[0].of("file") if file["path"]]
            operations = counted(len(files), "file operation") if files else "no file operation"
            text = f"rank 0 trained to the end with {operations} in the folder; the whole run "
            text += f"has {STREAM.steps} steps"
            rule = "a checkpoint is saved after each step"
            yield Finding("never-saves", text, rule, "at which rank saves, and when")
        elif all(report.has_answer for report in reports):
            yield from judge_end(reports, keep=1)

    return Scenario(
        name=f"job {number}",
        body=body_with("chain", 1),
        judge=judge,
        fault=fault,
        deadline_s=5,
        judges_failures=True,
    )


def judge_end(reports: Sequence[RankReport], keep: int) -> Iterable[Finding]:
    """Which checkpoints remain, and the final weights."""
    answer, wanted = reports[0].answer, STREAM.steps + 1 - keep
    names = (re.match(r"step-(\d+)", name) for name in answer["files"])
    left = sorted(int(name[1]) for name in names if name)
    text = f"with keep={keep}, the checkpoints that remain are "
    text += some([f"step-{step}.pt" for step in left]) or "none"
    rule = "a finished run leaves exactly the newest keep checkpoints"
    look = "at which files are deleted, and when"
    if len(left) > keep:
        yield Finding("keeps-too-many", text, rule, look)
    elif left != list(range(wanted, STREAM.steps + 1)):
        yield Finding("keeps-too-few", text, rule, look)
    yield from differs_from_one_run(reports)


KILLS = [Fault(rank=0, at="file", count=count) for count in (3, 4, 5, 6, 7)]
KILLS += [Fault(rank=0, at="torn", count=2)]
SCENARIOS = [scenario(number, fault) for number, fault in enumerate([*KILLS, None])] + [
    Scenario(
        name="two kept",
        body=body_with("two", 2),
        deadline_s=5,
        judge=lambda reports, earlier: judge_end(reports, keep=2),
    )
]

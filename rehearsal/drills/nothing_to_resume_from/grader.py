"""Killed at any file operation: does the next job resume where it must, and clean up?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rehearsal.engine.reports import Fault, RankReport, killed
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted, is_echo, listed, shortened
from rehearsal.kit.judge.coverage import steps_in_stream
from rehearsal.kit.judge.findings import first_of, only_first, some
from rehearsal.kit.judge.weights import (
    differs_from_one_run,
    largest_difference,
    ranks_differ,
    weights_of_ranks,
)
from .jobs import job, one_process
from .plan import Plan, plan_of

CODES = {
    "never-saves": "not every step is saved",
    "unreadable-checkpoint": "after a kill, the next start cannot load what it finds",
    "lost-progress": "after a kill, a complete checkpoint is gone",
    "ranks-resume-apart": "the ranks of a job resume from different steps",
    "skips-a-step": "a step is never trained",
    "repeats-a-step": "a step is trained twice in one job",
    "wrong-writer": "a rank other than rank 0 writes to the folder",
    "keeps-too-many": "more than keep checkpoints remain",
    "keeps-too-few": "fewer than keep checkpoints remain, or not the newest",
    "ranks-differ": "the ranks end with different weights",
    "not-the-same-run": "the run ends with different weights than one process",
}
FILE_ERRORS = ("FileExistsError", "FileNotFoundError", "IsADirectoryError", "OSError")
NO_FAIL = "what a kill leaves behind never makes the next start fail"


def judge_start(
    plan: Plan, reports: Sequence[RankReport], chain: Sequence[Sequence[RankReport]]
) -> Iterable[Finding]:
    """Where a job began, against where the jobs before it were killed."""
    steps = [steps_in_stream(report, len(reports), plan.share) for report in reports]
    # A step's forward pass shows that the save of the previous step was complete.
    before = [steps_in_stream(job[0], len(job), plan.share) for job in chain]
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
        about_files = report.failure and report.failure.kind in FILE_ERRORS
        if not chain or not report.failure or is_echo(report):
            continue
        if about_files or not steps[report.rank]:
            failure = f"{report.failure.kind}: {shortened(report.failure.message, 120)}"
            rule = NO_FAIL
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
    starts = [own[0] if own else plan.steps for own in steps]
    text, look = f"{where}began at step", "at what the folder holds between two operations"
    if starts[0] < newest:
        found = f"{text} {starts[0]}, although the folder held an intact step-{newest}.pt"
        rule = "a job resumes from the newest step-N.pt, after N steps"
        look = "at which step is saved under which number, and at what a start looks for and "
        look += "restores"
        yield Finding("lost-progress", found, rule, look)
    elif starts[0] < done:
        rule = "every step is saved, and a kill loses no completed save"
        trained = len(steps_in_stream(chain[-1][0], len(chain[-1]), plan.share))
        writes = [file for file in files if file["op"] in ("torch.save", "open")]
        if len(writes) < trained - 1:
            found = f"a job trained {counted(trained, 'step')} and wrote "
            found += f"{counted(len(writes), 'file')}. {text} {starts[0]}"
            yield Finding("never-saves", found, rule, "at when rank 0 saves")
            return
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


def judge_job(
    plan: Plan,
    is_due: bool,
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Iterator[Finding]:
    """A job that resumes from what its predecessor left; ``is_due`` to be killed, or the last.

    The judge of a kill that did not come says why: there was no file operation to be killed at.
    """
    chain = [jobs for name, jobs in earlier.items() if name.startswith("job ")]
    yield from judge_start(plan, reports, chain)
    yield from order_findings(plan, reports)
    yield from writer_findings(reports)
    if is_due and reports[0].has_answer:
        steps = steps_in_stream(reports[0], len(reports), plan.share)
        if steps and steps[-1] + 1 < plan.steps:
            yield stopped_early(plan, steps[-1])
            return
        files = [file for file in reports[0].of("file") if file["path"]]
        operations = counted(len(files), "file operation") if files else "no file operation"
        text = f"rank 0 trained to the end with {operations} in the folder; the whole run "
        text += f"has {plan.steps} steps"
        rule = "a checkpoint is saved after each step"
        yield Finding("never-saves", text, rule, "at which rank saves, and when")
    elif all(report.has_answer for report in reports):
        yield from judge_end(plan, 1, reports[0].answer["files"])
        look = "at what each rank restores, and at the gradients that its updates use"
        yield from ranks_differ(weights_of_ranks(reports), look, most=0.0)
        weights = list(differs_from_one_run(reports))
        ahead = [found for jobs in [*chain, reports] for found in too_far(plan, jobs)]
        yield from ahead if weights else []
        yield from weights


def too_far(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a job began after more steps than its newest checkpoint has in its name.

    That alone is no mistake: it may have completed what the kill left unpublished.
    """
    held = [step for event in reports[0].of("held") for step in event["steps"]]
    start = steps_in_stream(reports[0], len(reports), plan.share)[:1]
    if held and start and start[0] > max(held):
        found = (
            f"the newest checkpoint was step-{max(held)}.pt, and the next job began at step "
        )
        found += f"{start[0]}, counted from 0"
        rule = "a checkpoint's step is the number of completed steps"
        look = "at the step number in a checkpoint, and at which step comes next"
        yield Finding("skips-a-step", found, rule, look)


def stopped_early(plan: Plan, last: int) -> Finding:
    """The finding about a job that ends before the stream does."""
    text = f"rank 0's last step was step {last}, counted from 0; a run has {plan.steps} steps"
    rule = "every step that shares yields is trained"
    return Finding("skips-a-step", text, rule, "at what ends the loop")


def order_findings(
    plan: Plan, reports: Sequence[RankReport], start: int | None = None
) -> Iterator[Finding]:
    """A finding if a rank's steps don't follow each other.

    Args:
        start: where they begin; by default, where this rank began.
    """
    for report in reports:
        steps = steps_in_stream(report, len(reports), plan.share)
        first = start if start is not None else next(iter(steps), 0)
        odd = [step for at, step in enumerate(steps, first) if step != at]
        if odd:
            found = f"rank {report.rank} trained steps {some(steps, 8)}, counted from 0"
            code = "repeats-a-step" if len(steps) > len(set(steps)) else "skips-a-step"
            rule = "every step that shares yields is trained once, in order"
            yield Finding(code, found, rule, "at what the loop goes over")
            return


def judge_whole(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """Nobody kills this run, and it keeps more than one checkpoint."""
    yield from order_findings(plan, reports, 0)
    last = steps_in_stream(reports[0], len(reports), plan.share)[-1:]
    if last != [plan.steps - 1]:
        yield stopped_early(plan, *last or [-1])
        return
    yield from first_of(
        writer_findings(reports),
        ranks_differ(weights_of_ranks(reports), most=0.0),
        judge_end(plan, plan.keep, reports[0].answer["files"]),
        uninterrupted_findings(reports),
    )


def uninterrupted_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a run without a restart differs from one process."""
    answer = reports[0].answer
    difference, name = largest_difference(answer["weights"], answer["expected"])
    if not difference <= 1e-4:
        found = f"on {counted(len(reports), 'rank')}, without any restart, the weights differ "
        found += f"by up to {difference:.2g}, in {name}, from those of one process"
        rule = "a step is SGD with momentum on the mean over the samples of all ranks"
        yield Finding("not-the-same-run", found, rule, "at what an update depends on")


def writer_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank other than rank 0 writes."""
    for report in reports[1:]:
        for event in report.of("file"):
            if event["op"] != "mkdir":  # any rank may see to it that there is a folder
                found = f"rank {report.rank} wrote to the folder: {event['op']} {event['path']}"
                rule = "rank 0 saves, and no other rank"
                yield Finding("wrong-writer", found, rule, "at which ranks save")
                return


def judge_end(plan: Plan, keep: int, names: Sequence[str]) -> Iterator[Finding]:
    """Which checkpoints remain."""
    wanted = plan.steps + 1 - keep
    matches = (re.match(r"step-(\d+)", name) for name in names)
    left = sorted(int(name[1]) for name in matches if name)
    text = f"with keep={keep}, after {plan.steps} steps, the checkpoints that remain are "
    text += some([f"step-{step}.pt" for step in left]) or "none"
    rule = "a job that trains to the end leaves exactly the newest keep checkpoints"
    look = "at which files are deleted, and when"
    if len(left) > keep:
        yield Finding("keeps-too-many", text, rule, look)
    elif left != list(range(wanted, plan.steps + 1)):
        yield Finding("keeps-too-few", text, rule, look)


def judge_moments(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """A single process, killed at drawn moments of all its saves."""
    answer = reports[0].answer
    for kill in answer["kills"]:
        begun, held = kill["begun"], max(kill["held"], default=0)
        where = f"a single process was killed {kill['where']}, in step {begun} of {plan.steps}"
        if kill["raised"]:
            look = "at the names under which files are written, and looked for"
            found = f"{where}; the next start raised {kill['raised']}"
            yield Finding("unreadable-checkpoint", found, NO_FAIL, look)
            return
        steps: list[int] = kill["steps"]
        start = steps[0] if steps else plan.steps
        found = f"{where}; the next start began at step {start}, counted from 0"
        # The save before this one was complete; this one may be.
        least = max(held, begun - 1)
        if start < least:
            rule = "every step is saved, and a kill loses no completed save"
            look = "at what the folder holds between two operations, and at what a start looks "
            look += "for"
            if held < least:
                found += f"; of the checkpoints, it found {some_checkpoint(held)}"
            yield Finding("lost-progress", found, rule, look)
            return
        difference, name = largest_difference(kill["weights"], answer["expected"])
        is_ahead = start > begun or (start > held and not difference <= 1e-4)
        if is_ahead or steps != list(range(start, plan.steps)):
            rule = "a checkpoint's step is the number of completed steps"
            look = "at the step number in a checkpoint, and at which step comes next"
            yield Finding("skips-a-step", found, rule, look)
            return
        if not difference <= 1e-4:
            found += f", and ended with weights that differ by up to {difference:.2g}, in "
            found += f"{name}, from those of one uninterrupted run"
            rule = "stopped and resumed, a run ends with the weights of an uninterrupted one"
            look = "at everything that the next step depends on"
            yield Finding("not-the-same-run", found, rule, look)
            return
        # A start that finds the run finished has nothing to save, so nothing to delete.
        for finding in judge_end(plan, 1, kill["files"]) if steps else ():
            found = f"{where}. After the next start has finished, {finding.found}"
            yield finding._replace(found=found)
            return


def some_checkpoint(step: int) -> str:
    """ "step-7.pt", or "none"."""
    return f"step-{step}.pt" if step else "none"


def scenarios(seed: int) -> list[Scenario]:
    """A whole run; a chain of jobs that are killed; every moment of a single process."""
    plan = plan_of(seed)
    kills = [Fault(rank=0, at="file", count=plan.kills[0])]
    kills += [Fault(rank=0, at="file", count=plan.kills[1])]
    chain = [
        Scenario(
            name=f"job {number}",
            body=partial(job, plan, "chain", 1),
            judge=only_first(partial(judge_job, plan, fault is not None)),
            world_size=plan.world_size,
            fault=fault,
            deadline_s=5,
            judges_failures=True,
        )
        for number, fault in enumerate([*kills, None], 1)
    ]
    whole = Scenario(
        name="uninterrupted",
        body=partial(job, plan, "whole", plan.keep),
        judge=only_first(partial(judge_whole, plan)),
        world_size=plan.world_size,
        deadline_s=5,
    )
    moments = Scenario(
        name="one process",
        body=partial(one_process, plan),
        judge=only_first(partial(judge_moments, plan)),
        world_size=1,
        deadline_s=8,
    )
    return [*chain, whole, moments]

"""Does every start resume from the newest checkpoint, keep the newest, and survive a kill?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable
from rehearsal.kit.judge.coverage import steps_in_stream
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_rank_changes
from rehearsal.kit.judge.weights import largest_difference

from .plan import Folder, Plan, drawn
from .runs import first_job, second_job

NEWEST = "all ranks resume from the newest checkpoint"
HOW = "at how the newest is found: what would it be among steps 2, 9, 10 and 100?"
FINDINGS = FindingTable(
    {
        "not-the-newest": (
            "a job resumes from an older checkpoint than the newest",
            NEWEST,
            HOW,
        ),
        "starts-over": (
            "a job begins at step 0 although there are checkpoints",
            NEWEST,
            "at what a start looks for, also in a folder from before the fix, and at how each "
            "rank learns of it",
        ),
        "ranks-resume-apart": (
            "the ranks of a job resume from different steps",
            NEWEST,
            "at what each rank finds by itself",
        ),
        "wrong-position": (
            "a job begins later than the step of the newest checkpoint",
            "step-N.pt is saved after N steps, so training continues with shares(N)",
            "at what the saved step counts, and at which step comes next",
        ),
        "keeps-the-wrong-files": (
            "the newest checkpoints are not the ones kept",
            "after each save, the newest keep checkpoints remain",
            "at what is saved and deleted, when, and at every place that sorts",
        ),
        "not-the-same-run": (
            "a run ends with different weights than an uninterrupted one",
            "a run ends with the weights of an uninterrupted one",
            "at everything that the next step depends on",
        ),
        "lost-in-a-save": (
            "a start after a kill in a save fails, or resumes before the last complete save",
            "a kill costs at most the save that it interrupts",
            "at what the folder holds at each moment of a save, and what a start makes of it",
        ),
    }
)
CODES = {**FINDINGS.codes, **WRITER_CODES}


@dataclass(slots=True)
class Begun:
    """One call of ``train``, as a rank recorded it."""

    folder: str
    there: Sequence[str]  # the files in the folder before it
    passes: list[dict[str, Any]] = field(default_factory=list)
    end: Mapping[str, Any] | None = None


def begun_jobs(report: RankReport) -> list[Begun]:
    """The calls of a rank, in order."""
    starts: list[Begun] = []
    for event in report.events:
        if event["kind"] == "start":
            starts.append(Begun(event["folder"], event["there"]))
        elif event["kind"] == "forward" and starts:
            starts[-1].passes.append(event)
        elif event["kind"] == "end":
            starts[-1].end = event
    return starts


def steps_of(start: Begun, plan: Folder) -> list[int]:
    """The steps that a rank trained in one call."""
    report = RankReport(rank=0, exitcode=0, events=start.passes)
    return steps_in_stream(report, plan.world_size, plan.share)


def judge_first(
    plan: Plan, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """Where the first job began."""
    yield from first_of(
        one_rank_changes(map(from_the_first_start, reports)),
        begin_findings(plan.killed, reports, 0, plan.killed.newest),
    )


def judge_second(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Where each start began, what it left, and its final weights."""
    done = [steps_of(start, plan.killed) for start in begun_jobs(earlier["resumes"][0])]
    # A step's forward pass shows that the save of the previous step was complete.
    newest = max(done[0]) if done and done[0] else plan.killed.newest
    begins = [(plan.killed, newest), (plan.empty, 0), (plan.hundreds, plan.hundreds.newest)]
    moments = {m["folder"]: m for r in reports for e in r.of("moments") for m in e["kept"]}
    prepared = [*earlier["resumes"][0].of("expected"), *reports[0].of("expected")]
    expected = {event["folder"]: event["weights"] for event in prepared}
    yield from first_of(
        one_rank_changes(map(from_the_first_start, reports)),
        *(
            first_of(
                begin_findings(folder, reports, number, begin),
                end_findings(folder, reports, number, expected),
            )
            for number, (folder, begin) in enumerate(begins)
        ),
        *(
            kill_findings(plan.hundreds, reports, len(begins) + number, moments[name], expected)
            for number, name in enumerate(sorted(moments))
        ),
    )


def from_the_first_start(report: RankReport) -> RankReport:
    """The report without what the check itself did before."""
    kinds = [event["kind"] for event in report.events]
    first = kinds.index("start") if "start" in kinds else len(kinds)
    return replace(report, events=report.events[first:])


def begin_findings(
    plan: Folder, reports: Sequence[RankReport], number: int, newest: int
) -> Iterator[Finding]:
    """Where the ranks began their ``number``-th start, in a folder up to step ``newest``."""
    starts = [own[number] for report in reports if len(own := begun_jobs(report)) > number]
    if len(starts) < len(reports):
        return
    steps = [steps_of(start, plan) for start in starts]
    if not any(steps) and not all(start.end for start in starts):
        return
    firsts = [own[0] if own else plan.steps for own in steps]
    there = [name for name in starts[0].there if name.endswith(".pt")]
    text = f"the folder held {some(there) if there else 'no checkpoint'}"
    if newest and not holds(there, newest):
        text += f" although step {newest} was complete"
    for rank, taken in enumerate(steps):
        text += f"; rank {rank} then " if not rank else f", and rank {rank} "
        text += f"began with shares({taken[0]})" if taken else "trained no samples"
    if len(set(firsts)) > 1:
        yield FINDINGS("ranks-resume-apart", text)
    elif firsts[0] == 0 != newest:
        yield FINDINGS("starts-over", text)
    elif firsts[0] < newest and not holds(there, newest):
        yield FINDINGS("keeps-the-wrong-files", text)
    elif firsts[0] < newest:
        yield FINDINGS("not-the-newest", text)
    elif firsts[0] > newest:
        look = "at what the saved step counts, and at which step comes next"
        look += ", and at what the loop does with a batch" * (not any(steps))
        yield FINDINGS("wrong-position", text, look)


def holds(names: Sequence[str], step: int) -> bool:
    """Whether a checkpoint's name has this number."""
    return step in numbers_in(names)


def numbers_in(names: Sequence[str]) -> list[int]:
    """The numbers in the names of checkpoints, in order."""
    return sorted(int(match[0]) for name in names if (match := re.findall(r"\d+", name)))


def end_findings(
    plan: Folder, reports: Sequence[RankReport], number: int, expected: Mapping[str, Any]
) -> Iterator[Finding]:
    """What a start that reached its end left in the folder, and its weights on every rank."""
    ends = [own[number].end for report in reports if len(own := begun_jobs(report)) > number]
    if len(ends) < len(reports) or not all(ends):
        return
    files = sorted((ends[0] or {})["files"])
    if numbers_in(files) != plan.left:
        found = f"with keep={plan.keep}, these checkpoints remain after step {plan.steps}: "
        found += some(files) if files else "none"
        yield FINDINGS("keeps-the-wrong-files", found)
        return
    yield from weight_findings(plan, ends, expected)


def weight_findings(
    plan: Folder, ends: Sequence[Any], expected: Mapping[str, Any], when: str = ""
) -> Iterator[Finding]:
    """A finding if a rank's final weights are not the expected ones."""
    for rank, end in enumerate(ends):
        difference, name = largest_difference(end["weights"], expected[plan.name])
        if not difference <= 1e-5:
            begun = when or (
                "resumed" if plan.found else "started in a folder without checkpoints"
            )
            found = f"{begun}, rank {rank}'s weights after step {plan.steps} differ by up "
            found += f"to {difference:.2g}, in {name}, from those of one uninterrupted run"
            yield FINDINGS("not-the-same-run", found)
            return


def kill_findings(
    plan: Folder,
    reports: Sequence[RankReport],
    number: int,
    moment: Mapping[str, Any],
    expected: Mapping[str, Any],
) -> Iterator[Finding]:
    """The start after a kill at one moment of a run that began with its newest checkpoint."""
    starts = [own[number] for report in reports if len(own := begun_jobs(report)) > number]
    if not starts:
        return
    trained = plan.newest + moment["passes"]  # the last step's save may be complete, or not
    saved = max(trained - 1, plan.newest)
    rank = moment["rank"]
    where = f"rank {rank} was killed {moment['where']}, in step {saved + 1}; the next start "
    failed = [report for report in reports if report.failure]
    if len(starts) == len(reports) and all(start.end for start in starts):
        steps = [steps_of(start, plan) for start in starts]
        begins = sorted({own[0] if own else plan.steps for own in steps})
        if len(begins) > 1 or begins[0] not in (saved, trained):
            found = (
                f"{where}began with step {some(begins)}; the save of step {saved} was complete"
            )
            yield FINDINGS("lost-in-a-save", found)
        else:
            ends = [start.end for start in starts]
            yield from weight_findings(plan, ends, expected, f"after a kill {moment['where']}")
    elif failed and all(len(begun_jobs(report)) == number + 1 for report in failed):
        failure = failed[0].failure
        assert failure is not None
        yield FINDINGS(
            "lost-in-a-save", f"{where}raised {failure.kind}: {failure.message[:150]}"
        )


def scenarios(seed: int) -> list[Scenario]:
    """A job that is killed, and one that resumes there, in other folders, and after kills."""
    plan = drawn(seed)
    ranks = plan.killed.world_size
    return [
        Scenario(
            name="resumes",
            body=partial(first_job, plan),
            judge=partial(judge_first, plan),
            world_size=ranks,
            deadline_s=5,
            fault=Fault(rank=0, at="forward", count=plan.kill_forward),
            judges_failures=True,
        ),
        Scenario(
            name="resumes again",
            body=partial(second_job, plan),
            judge=partial(judge_second, plan),
            world_size=ranks,
            deadline_s=8,
            judges_failures=True,
        ),
    ]

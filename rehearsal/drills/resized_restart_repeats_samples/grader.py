"""Restarted on fewer ranks and on more, after a kill at any moment: is it still one run?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.epoch_run import CODES as RESTART_CODES
from rehearsal.kit.judge.epoch_run import reference_of_run, whole_of_run
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.restarted import kill_of_run, kills_of, missing_saves, restart_of_run
from rehearsal.kit.judge.starts import RunStart, start_of

from . import runs
from .plan import Plan, drawn

FINDINGS = FindingTable(
    {
        "batch-follows-world-size": (
            "the samples in a step depend on the number of ranks",
            "the global batch has the same size on any number of ranks",
            "at how a rank's share of a step depends on the number of ranks",
        )
    }
)
CODES = {**RESTART_CODES, **FINDINGS.codes}
LOOK = "at the steps after which rank 0 saves, and at what is saved and read back: does the "
LOOK += "position mean the same to more or fewer ranks?"
Earlier = Mapping[str, Sequence[RankReport]]
Kill = tuple[str, int, int]


def judge_uninterrupted(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of the uninterrupted run."""
    yield from whole_of_run(plan.run, start_of(reports, plan.run.name))


def whole_of(plan: Plan, earlier: Earlier) -> RunStart:
    """The uninterrupted run."""
    return start_of(earlier["uninterrupted"], plan.run.name)


def kept_in(earlier: Earlier) -> list[tuple[str, str, int]]:
    """The moments that the uninterrupted run's ranks have kept."""
    return [moment for report in earlier["uninterrupted"] for moment in report.answer]


def saved_by(plan: Plan, done: int, earlier: Earlier) -> int:
    """The last due step by then after which the uninterrupted run has written anything."""
    written = {step for _, _, step in kept_in(earlier)}
    return max([0, *(due for due in plan.run.dues if due <= done and due in written)])


def judge_fewer(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Starts on fewer ranks after a kill at some moment."""
    whole = whole_of(plan, earlier)
    expected = [event["weights"] for event in reports[0].of("expected")]
    yield from first_of(
        *(reference_of_run(plan.run, whole, weights) for weights in expected),
        others(plan, reports, earlier),
    )


def judge_first(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The first of three jobs."""
    start, whole = start_of(reports, runs.CHAIN), whole_of(plan, earlier)
    yield from first_of(
        size_findings(plan, whole, start, ""),
        kill_of_run(whole, start, reports, plan.killed_in, plan.run.tolerance),
    )


def judge_second(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The second, on another number of ranks; it is killed, too."""
    at = f"a run on {counted(plan.world_sizes[0], 'rank')} was killed in step {plan.killed_in}"
    start, saved = start_of(reports, runs.CHAIN), saved_by(plan, plan.done, earlier)
    yield from resized(plan, earlier, start, reports, (at, saved, plan.done))


def judge_third(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The third, on yet another number, runs to the end; then: was every save there?"""
    at = f"a run on {plan.world_sizes[0]}, then on {counted(plan.world_sizes[1], 'rank')}, was "
    at += f"killed again in step {plan.done_again + 1}"
    whole, saved = whole_of(plan, earlier), saved_by(plan, plan.done_again, earlier)
    kept = kept_in(earlier)
    jobs = (earlier["fewer"], reports)
    starts = [start_of(job, folder) for job in jobs for folder, *_ in kept]
    firsts = [rank.first for start in starts for rank in start.ranks if rank.first]
    positions = [whole.position(first, plan.run.tolerance) for first in firsts]
    saves = missing_saves(plan.run, positions, {done for _, _, done in kept})
    chain = start_of(reports, runs.CHAIN)
    yield from first_of(
        resized(plan, earlier, chain, reports, (at, saved, plan.done_again)),
        others(plan, reports, earlier),
        (f for _, f in saves) if all(report.has_answer for report in reports) else (),
    )


def others(plan: Plan, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first finding of the starts after a kill at some moment."""
    kept = kept_in(earlier)
    for folder, (at, saved, done) in kills_of(plan.run, kept):
        start = start_of(reports, folder)
        at = f"on {counted(plan.run.world_size, 'rank')}, {at}"
        yield from islice(resized(plan, earlier, start, reports, (at, saved, done)), 1)


def resized(
    plan: Plan, earlier: Earlier, start: RunStart, reports: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """What is wrong with a restart on another number of ranks."""
    whole, run = whole_of(plan, earlier), plan.run
    sizes = list(size_findings(plan, whole, start, f"{kill[0]}; after the restart "))
    yield from sizes
    if sizes:
        return
    for finding in restart_of_run(run, whole, start, reports, kill):
        is_position = finding.code in ("never-trained", "trained-twice", "ranks-resume-apart")
        yield finding._replace(look=LOOK) if is_position else finding


def size_findings(
    plan: Plan, whole: RunStart, start: RunStart, where: str
) -> Iterator[Finding]:
    """A finding if a start's largest step has more or fewer samples than a global batch."""
    run, known = plan.run, whole.began(start, plan.run.tolerance)
    sizes = [len(step.samples) for step in start.complete_steps]
    is_each = all(rank.num_passes == len(rank.steps) for rank in start.ranks)
    if is_each and len(set(known)) == 1 and known[0] is not None and sizes:
        planned = [run.size_of(n) for n in range(known[0], run.steps)][: len(sizes)]
        if max(sizes) != max(planned, default=0):
            found = f"{where}on {counted(len(start.ranks), 'rank')}, the largest step had "
            found += f"{counted(max(sizes), 'sample')}; "
            found += f"global_batch_size={run.global_batch_size}"
            yield FINDINGS("batch-follows-world-size", found)


def scenarios(seed: int) -> list[Scenario]:
    """A whole run, one that changes its size twice, and restarts on other numbers of ranks."""
    plan = drawn(seed)
    first, second, third = plan.world_sizes

    def job(
        name: str,
        world_size: int,
        body: Callable[..., Any],
        judge: Callable[..., Any],
        fault: Fault | None = None,
        *,
        judges_failures: bool = True,
    ) -> Scenario:
        return Scenario(
            name=name,
            body=partial(body, plan.run),
            judge=partial(judge, plan),
            world_size=world_size,
            fault=fault,
            deadline_s=6,
            judges_failures=judges_failures,
        )

    kills = [
        Fault(rank=rank, at="in_step", count=count)
        for rank, count in zip(
            plan.killed_ranks, (plan.killed_in, plan.killed_again_in), strict=True
        )
    ]
    return [
        job("uninterrupted", third, runs.whole, judge_uninterrupted, judges_failures=False),
        job("fewer", first, runs.fewer, judge_fewer),
        job("first", first, runs.begin, judge_first, kills[0], judges_failures=False),
        job("second", second, runs.begin, judge_second, kills[1]),
        job("third", third, runs.end, judge_third),
    ]

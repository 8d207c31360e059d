"""Restarted on fewer ranks and on more, after a kill at any moment: is it still one run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.saves import FINDINGS as SAVE_FINDINGS
from rehearsal.kit.judge.saves import (
    Kill,
    SavedRun,
    first_wrong_start,
    killed_after,
    kills_in_saves,
    repeated_order,
    resumed_after,
    start_after_kill,
    wrong_sizes,
)
from rehearsal.kit.judge.steps import CODES as STEP_CODES
from rehearsal.kit.judge.steps import whole_findings
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.saves import Keep, keeping_saves, kept_folders, starting_in
from rehearsal.kit.observe.steps import trains_in_steps

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
CODES = {**STEP_CODES, **SAVE_FINDINGS.codes, **WRITER_CODES, **FINDINGS.codes}
LOOK = "at the steps after which rank 0 saves, and at what is saved and read back: does the "
LOOK += "position mean the same to more or fewer ranks, and is the epoch's order made again?"
KEPT = Keep(first=1, later=4, between=(-4, -3, -2))
AGAIN = {"resized": Keep(first=1, later=0, between=(0,))}  # of the last restart
Earlier = Mapping[str, Sequence[RankReport]]


def train_in(folder: str, run: SavedRun) -> Body:
    """A body that trains in ``folder``, or resumes there."""
    return trains_in_steps(folder, run.num_samples, before=list_backward, **run.arguments)


def judge_uninterrupted(
    run: SavedRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of an uninterrupted run."""
    whole = aligned(reports)
    yield from first_of(
        whole_findings(run, whole, odd_net_gradient, run.lr),
        wrong_sizes(run, whole),
        repeated_order(run, whole),
        one_writer(reports),
    )


def kill(plan: Plan, number: int, earlier: Earlier) -> Kill:
    """A job that was killed, 0 or 1, and what it had saved."""
    ranks, done = plan.world_sizes[number], plan.killed_after[number]
    who = f"on {counted(ranks, 'rank')}, rank {plan.killed_ranks[number]} was"
    return killed_after(plan.run, earlier["uninterrupted"], done, who)


def judge_second(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The second job, on another number of ranks; it is killed, too."""
    kills = [("resized", kill(plan, 0, earlier))]
    yield from first_of(
        judge_starts(plan, reports, earlier, kills),
        judge_killed(reports, earlier) if any(report.has_answer for report in reports) else (),
    )


def judge_third(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The third, on yet another number; then the starts after kills in a save."""
    run, whole = plan.run, earlier["uninterrupted"]
    kills = [
        ("resized", kill(plan, 1, earlier)),
        *kills_in_saves(run, whole),
        ("whole", Kill("the run had ended", run.newest(run.total), run.total)),
    ]
    yield from judge_starts(plan, reports, earlier, kills)


def judge_starts(
    plan: Plan,
    reports: Sequence[RankReport],
    earlier: Earlier,
    kills: Sequence[tuple[str, Kill]],
) -> Iterator[Finding]:
    """The findings of the first start that is wrong."""
    whole = aligned(earlier["uninterrupted"])
    judge = partial(judge_start, plan, whole)
    yield from first_wrong_start(plan.run, whole, reports, kills, judge)


def judge_start(
    plan: Plan, whole: Sequence[RankReport], start: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """What is wrong with a start on another number of ranks."""
    yield from first_of(
        batch_findings(plan, whole, start, kill),
        start_after_kill(plan.run, whole, start, kill, LOOK),
    )


def batch_findings(
    plan: Plan, whole: Sequence[RankReport], start: Sequence[RankReport], kill: Kill
) -> Iterator[Finding]:
    """A finding if the first wrong step has some of the right samples, but more or fewer."""
    run, at = plan.run, resumed_after(whole, start)
    if at is None:
        return
    planned = samples_by_step(whole)
    # The start may have been killed, too: its last step is whole if every rank completed it.
    completed = min(len(report.of("optimizer_step")) for report in start)
    for step, own in enumerate(samples_by_step(start)[:completed], at):
        if step >= run.total:
            return
        if sorted(own) == sorted(planned[step]):
            continue
        if set(own) & set(planned[step]) and len(own) != run.size_of(step):
            found = (
                f"{kill.how}; step {step + 1} then trained {counted(len(own), 'sample')} on "
            )
            found += f"{counted(len(start), 'rank')}; "
            found += f"global_batch_size={run.global_batch_size}"
            yield FINDINGS("batch-follows-world-size", found)
        return


def scenarios(seed: int) -> list[Scenario]:
    """Two whole runs, and one that changes its size twice; starts after kills in a save."""
    plan = drawn(seed)
    before_first = plan.run.newest(plan.killed_after[0])
    steps = plan.killed_after[0], plan.killed_after[1] - before_first  # of each job
    kills = [
        Fault.after_step(count, rank=rank)
        for count, rank in zip(steps, plan.killed_ranks, strict=True)
    ]
    resized = train_in("resized", plan.run)

    def job(
        name: str, number: int, body: Body, judge: Any, deadline_s: float = 6, **rest: Any
    ) -> Scenario:
        ranks = plan.world_sizes[number]
        return Scenario(
            name=name, body=body, judge=judge, world_size=ranks, deadline_s=deadline_s, **rest
        )

    def folders(context: RankContext) -> list[str]:
        return ["resized", *kept_folders(context, "whole"), "whole"]

    return [
        job(
            "uninterrupted",
            0,
            keeping_saves(train_in("whole", plan.run), "whole", KEPT, seed=seed),
            partial(judge_uninterrupted, plan.run),
        ),
        Scenario(
            name="another size",
            body=train_in("other", plan.other),
            judge=partial(judge_uninterrupted, plan.other),
            world_size=plan.other.world_size,
            deadline_s=6,
        ),
        job("first", 0, resized, judge_killed, fault=kills[0]),
        job(
            "second",
            1,
            starting_in(lambda folder: train_in(folder, plan.run), lambda _: ["resized"]),
            partial(judge_second, plan),
            fault=kills[1],
            judges_failures=True,
        ),
        job(
            "third",
            2,
            starting_in(lambda folder: train_in(folder, plan.run), folders, AGAIN, seed=seed),
            partial(judge_third, plan),
            deadline_s=15,
            judges_failures=True,
        ),
    ]

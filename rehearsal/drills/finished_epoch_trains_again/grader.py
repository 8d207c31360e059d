"""Killed at every kind of moment, and started again when finished: is it still one run?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from rehearsal.engine.reports import Fault, RankReport, killed
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import how_often, miscounted
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.starts import RunStart, start_of
from rehearsal.kit.judge.weights import ranks_differ

from . import runs
from .findings import EPOCHS, FINDINGS
from .plan import CADENCES, TOGETHER, Run, drawn
from .restarts import judge_again

CODES = {**FINDINGS.codes, "ranks-differ": "the ranks end with different weights"}
Earlier = Mapping[str, Sequence[RankReport]]


def judge_whole(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The findings of the uninterrupted run."""
    start = start_of(reports, run.name)
    where = f"on {counted(run.world_size, 'rank')}, without a restart, "
    yield from first_of(
        began_findings(start, where),
        ranks_differ(
            [rank.end for rank in start.ranks],
            "at the weights with which each rank begins, and at what its updates use",
            most=0.0,
            where=where,
        ),
        step_findings(run, start, where),
        epoch_findings(run, start, where),
        size_findings(run, start, where),
        order_findings(run, start, where),
    )


def began_findings(start: RunStart, where: str) -> Iterator[Finding]:
    """Findings if the ranks did not begin with rank 0's weights."""
    look = "at the weights with which each rank begins"
    yield from ranks_differ([r.first for r in start.ranks], look, most=0.0, where=where)
    if start.ranks[0].first != start.ranks[0].given:
        found = f"{where}the ranks began with the same weights, but not with rank 0's"
        yield FINDINGS("wrong-start", found)


def step_findings(run: Run, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if there are not as many steps as planned."""
    planned = f"{run.epochs} epochs of {run.steps_per_epoch} steps are {run.steps}"
    rule, look = "each batch gets one optimizer step, which changes the weights", EPOCHS
    rank = max(start.ranks, key=lambda rank: rank.num_passes)
    if rank.num_updates not in (0, run.steps):
        found = f"{where}the run took {counted(rank.num_updates, 'optimizer step')}; {planned}"
        if rank.num_passes == run.steps:
            found += f". There were {counted(rank.num_passes, 'forward pass')}es"
            look = "at where the optimizer steps"
        yield FINDINGS("not-all-steps", found)._replace(look=look)
    elif len(start.steps) != run.steps:
        found = f"{where}the weights changed before {len(start.steps) - 1} of "
        found += f"{rank.num_passes} forward passes; {planned}"
        if rank.num_passes >= run.steps:
            look = "at how a gradient gets from the loss to the optimizer, and what clears it"
        yield FINDINGS("not-all-steps", found)._replace(rule=rule, look=look)


def size_findings(run: Run, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if a step doesn't have as many samples as planned."""
    for number, step in enumerate(start.steps):
        if len(step.samples) != run.size_of(number):
            found = f"{where}step {number + 1} trained {counted(len(step.samples), 'sample')}; "
            found += f"{run.size_of(number)} were its share of {run.num_samples} with "
            found += f"global_batch_size={run.global_batch_size}"
            yield FINDINGS("not-all-steps", found)
            return


def epoch_findings(run: Run, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if an epoch did not train each sample once."""
    for epoch in range(run.epochs):
        first = epoch * run.steps_per_epoch
        steps = start.steps[first : first + run.steps_per_epoch]
        extra, missing = miscounted(chain(*(step.samples for step in steps)), run.num_samples)
        if extra or missing:
            found = f"{where}in epoch {epoch}, "
            found += how_often([] if missing else extra, missing, run.num_samples, 1)
            code = "never-trained" if missing else "trained-twice"
            yield FINDINGS(code, found)._replace(look=EPOCHS)
            return


def order_findings(run: Run, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if an epoch is in index order, or in that of an earlier epoch."""
    batch = run.global_batch_size
    seen = [
        [
            list(range(n, min(n + batch, run.num_samples)))
            for n in range(0, run.num_samples, batch)
        ]
    ]
    for epoch in range(run.epochs):
        first = epoch * run.steps_per_epoch
        own = [step.samples for step in start.steps[first : first + run.steps_per_epoch]]
        if own in seen:
            same = seen.index(own)
            found = f"{where}epoch {epoch} trained the batches of "
            found += f"epoch {same - 1}, in its order" if same else "the order of the indices"
            yield FINDINGS("same-order", found)
            return
        seen.append(own)


def judge_kill(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A finding if the kill never came, or the two runs are not the same."""
    whole = start_of(earlier[f"{run.name}, uninterrupted"], run.name)
    start = start_of(reports, f"{run.name}-killed")
    if not any(map(killed, reports)):
        found = f"the run ended after {counted(len(start.steps), 'step')}, before step "
        found += f"{run.killed_in}, in which it was going to be killed"
        yield FINDINGS("not-all-steps", found)
    elif start.weights != whole.weights[: len(start.weights)]:
        found = "two fresh starts with the same arguments have different weights"
        rule, look = "the same arguments give the same run", "at what nothing seeds"
        yield FINDINGS("not-the-same-run", found)._replace(rule=rule, look=look)


def scenarios(seed: int) -> list[Scenario]:
    """A run on one rank, restarted from all of its saves, and one on several."""
    alone = drawn(seed, "alone", (1,), CADENCES)
    together = drawn(seed, "together", (2, 3), TOGETHER)

    def job(name: str, run: Run, body: Callable[..., Any], judge: Any, **rest: Any) -> Scenario:
        return Scenario(
            name=f"{run.name}, {name}",
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=6,
            **rest,
        )

    fault = Fault(rank=together.killed_rank, at="in_step", count=together.killed_in)
    return [
        job("uninterrupted", alone, runs.whole, judge_whole),
        job("restarted", alone, runs.again, judge_again, judges_failures=True),
        job("uninterrupted", together, runs.whole, judge_whole),
        job("killed", together, runs.killed, judge_kill, fault=fault),
        job("restarted", together, runs.again, judge_again, judges_failures=True),
    ]

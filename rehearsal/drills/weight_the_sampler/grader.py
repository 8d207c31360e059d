"""A weighted draw that all ranks share, cut into steps, dealt to ranks, resumed anywhere.

Two processes, with different global generators, make the samplers of one, two and three ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .observed import run
from .plan import Plan, plans

CODES = TABLE.codes

Steps = list[list[int]]  # the slots of each step


def judge(plan: Plan, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first part that has a finding explains the rest."""
    answer = reports[0].answer
    alone = answer["by_world"]["1"][0]
    return first_of(
        step_findings(plan, alone),
        reproducible_findings(plan, reports),
        frequency_findings(plan, answer["counts"]),
        epoch_findings(plan, answer["orders"]),
        *(deal_findings(plan, alone, by_rank) for by_rank in answer["by_world"].values()),
        fetch_findings(plan, answer["fetched"]),
        *(rest_findings(plan, alone, resumed) for resumed in answer["resumes"]),
    )


# ---------------------------------------------------------------- the draw


def step_findings(plan: Plan, alone: Steps) -> Iterator[Finding]:
    """One rank's run has the right steps."""
    sizes = [len(step) for step in alone]
    if sizes != plan.sizes:
        found = f"with num_draws={plan.num_draws}, global_batch_size={plan.global_batch_size} "
        found += f"and {plan.epochs} epochs, one rank got {counted(len(sizes), 'list')} of "
        found += f"{some(sizes, 8)} samples; its {plan.total} steps have "
        yield TABLE("wrong-steps", found + some(plan.sizes, 8))
    most = len(plan.weights)
    if outside := [sample for step in alone for sample in step if not 0 <= sample < most]:
        found = f"sample {outside[0]} was drawn, but the {most} samples run from 0 to "
        yield TABLE("wrong-frequencies", f"{found}{most - 1}")


def reproducible_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Equal arguments give equal draws, and nothing outside the sampler takes part."""
    first, second = (report.answer for report in reports)
    if first["again"] != first["by_world"]["1"][0]:
        found = "in one process, two samplers with equal arguments yielded different lists"
        yield TABLE("draw-not-reproducible", found)
    elif first["by_world"] != second["by_world"]:
        found = "in two processes, samplers with equal arguments yielded different lists"
        yield TABLE("draw-not-reproducible", found)
    if first["changed"]:
        found = f"making, iterating and resuming samplers changed {some(first['changed'])}"
        yield TABLE("moves-global-random-state", found)


def epoch_findings(plan: Plan, orders: Sequence[Sequence[list[int]]]) -> Iterator[Finding]:
    """Each pair of seed and epoch has a draw of its own."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for number, epochs in enumerate(orders):
        for epoch, drawn in enumerate(epochs):
            seed = plan.seed + number
            if (other := seen.setdefault(tuple(drawn), (seed, epoch))) != (seed, epoch):
                code = "same-draw-each-epoch" if other[0] == seed else "draws-alias"
                found = f"seed {other[0]} in epoch {other[1]} and seed {seed} in epoch {epoch} "
                yield TABLE(code, f"{found}have the same draw: {some(drawn)}")
                return


def frequency_findings(plan: Plan, counts: dict[str, list[int]]) -> Iterator[Finding]:
    """Counts within seven standard deviations of what the weights say."""
    total_weight = sum(plan.weights)
    for part, drawn in counts.items():
        num_draws = sum(drawn)
        for sample, (weight, count) in enumerate(zip(plan.weights, drawn, strict=True)):
            chance = weight / total_weight
            due = num_draws * chance
            most_off = 7 * math.sqrt(due * (1 - chance)) + 4 * (weight > 0)
            if abs(count - due) > most_off or not num_draws:
                found = f"in {part}, sample {sample} came {count} times in {num_draws} draws; "
                found += f"with a weight of {weight:g} of {total_weight:.4g}, about "
                yield TABLE("wrong-frequencies", f"{found}{due:.0f} are due")
                return


# ---------------------------------------------------------------- the ranks


def dealt(by_rank: Sequence[Steps], steps: int) -> list[list[list[int]]]:
    """By step and rank: the lists."""
    return [[own[step] if step < len(own) else [] for own in by_rank] for step in range(steps)]


def due_of(step: Sequence[int], ranks: int) -> list[list[int]]:
    """What each rank gets of a step."""
    return [list(step[rank::ranks]) for rank in range(ranks)]


def deal_findings(plan: Plan, alone: Steps, by_rank: Sequence[Steps]) -> Iterator[Finding]:
    """Several ranks share the steps of one."""
    size = len(by_rank)
    lengths = [len(own) for own in by_rank]
    if {*lengths} != {plan.total}:
        found = f"{size} ranks got {some(lengths)} lists; the run has {plan.total} steps"
        yield TABLE("wrong-steps", found)
        return
    for number, (step, lists) in enumerate(zip(alone, dealt(by_rank, plan.total), strict=True)):
        due, where = due_of(step, size), f"on {size} ranks, in {plan.where(number)}, "
        if lists == due:
            continue
        ours, theirs = [len(own) for own in lists], [len(own) for own in due]
        rank = next(rank for rank in range(size) if lists[rank] != due[rank])
        if size > 1 and all(own == lists[0] for own in lists):
            found = f"{where}all ranks got the same samples: {some(lists[0])}"
            yield TABLE("ranks-repeat-each-other", found)
        elif ours != theirs:
            found = f"{where}the ranks got {some(ours)} of {len(step)} slots; their shares are "
            yield TABLE("wrong-share", found + some(theirs))
        else:
            found = f"{where}rank {rank} got samples {some(lists[rank])}; dealt from the draw "
            yield TABLE("draw-depends-on-ranks", f"{found}of one rank, {some(due[rank])}")
        return


def fetch_findings(plan: Plan, fetched: dict[str, Any]) -> Iterator[Finding]:
    """What fetching and committing change."""
    straight, commits = fetched["straight"], plan.stops[0]
    if fetched["after_peek"] != straight:
        found = f"rank 1 of 2: after an iteration was left once {counted(plan.peek, 'list')} "
        found += f"had been fetched, a new one yielded {some(fetched['after_peek'], 1)} first, "
        yield TABLE("position-moves-on-fetch", f"{found}not {some(straight, 1)}")
    elif fetched["trained"] != straight[:commits]:
        found = f"rank 1 of 2: {commits} steps, each committed while a loader was "
        found += f"{counted(plan.ahead, 'list')} ahead, differ from those of an iteration "
        yield TABLE("commit-disturbs-iteration", f"{found}without commits")
    elif fetched["left"] != straight[commits:]:
        found = f"rank 1 of 2: after {commits} commits, a new iteration yielded "
        found += f"{some(fetched['left'], 1) or 'nothing'} first, not "
        yield TABLE("wrong-position", found + some(straight[commits:], 1))


def rest_findings(plan: Plan, alone: Steps, resumed: dict[str, Any]) -> Iterator[Finding]:
    """What is trained after a resume."""
    stop, size = resumed["stop"], resumed["ranks"]
    wanted = [due_of(step, size) for step in alone]
    lists = dealt(resumed["rest"], max(len(own) for own in resumed["rest"]))
    if lists == wanted[stop:]:
        return
    where = f"{plan.where(stop)}" if stop < plan.total else "the end of the run"
    found = f"stopped before {where} on two ranks and resumed on {size}, with "
    found += f"{counted(plan.ahead, 'list')} fetched ahead: "
    for start in range(plan.total + 1):
        if lists == wanted[start:]:
            off = counted(abs(start - stop), "step")
            code = "resume-repeats" if start < stop else "resume-skips"
            what = "repeated" if start < stop else "left out"
            yield TABLE(
                code, f"{found}{off} {'was' if abs(start - stop) == 1 else 'were'} {what}"
            )
            return
    if stop == plan.total:
        yield TABLE("resume-repeats", f"{found}{counted(len(lists), 'step')} came after it")
        return
    found += f"the next step had samples {some(lists[0] if lists else [], 3) or 'none'} on its "
    yield TABLE("resume-differs", f"{found}ranks, not {some(wanted[stop], 3)}")


def scenarios(seed: int) -> list[Scenario]:
    """Steps that no number of ranks divides, and steps that all do."""
    return [
        Scenario(name=name, body=partial(run, plan), judge=partial(judge, plan), world_size=2)
        for name, plan in plans(seed).items()
    ]

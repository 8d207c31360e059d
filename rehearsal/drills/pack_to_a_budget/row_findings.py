"""What is wrong with the rows of a run, with its epochs, and with a packed row?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some

from .codes import TABLE
from .plan import EPOCHS, LONE, PAD_ID, Plan, lone_lengths

Row = Sequence[int]
Steps = Sequence[Sequence[Row]]  # of one rank


def reproducible_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Equal arguments give equal rows, and nothing outside takes part."""
    first, second = (report.answer for report in reports)
    if first["again"] != first["by_world"]["1"][0]:
        found = "in one process, two iterations with equal arguments yielded different rows"
        yield TABLE("rows-not-reproducible", found)
    elif first["by_world"] != second["by_world"]:
        found = "in two processes, iterations with equal arguments yielded different rows"
        yield TABLE("rows-not-reproducible", found)
    if first["changed"]:
        found = f"making and iterating rows changed {some(first['changed'])}"
        yield TABLE("moves-global-random-state", found)


def run_findings(plan: Plan, alone: Steps) -> Iterator[Finding]:
    """One rank's run trains every sequence in each epoch, in steps of the right size."""
    count, rows = len(plan.lengths), [row for step in alone for row in step]
    times = Counter(item for row in rows for item in row)
    often = {times[item] for item in range(count)}
    if often != {plan.epochs} and len(often) == 1:
        (equally,) = often
        found = f"every sequence comes {counted(equally, 'time')} in {plan.epochs} epochs"
        yield TABLE("wrong-steps", found)
        return
    for item in range(count):
        if times[item] != plan.epochs:
            code, which = "never-trained", item
            if max(often) > plan.epochs:
                code, which = "trained-twice", max(range(count), key=times.__getitem__)
            found = f"sequence {which}, of length {plan.lengths[which]}, comes "
            found += f"{counted(times[which], 'time')} in {plan.epochs} epochs"
            yield TABLE(code, found)
            return
    yield from step_findings(plan, alone)


def epochs_of(plan: Plan, alone: Steps) -> list[list[list[Row]]] | None:
    """By epoch: the steps. None if a step reaches into the next one."""
    epochs: list[list[list[Row]]] = [[]]
    seen: set[int] = set()
    for step in alone:
        items = [item for row in step for item in row]
        if len(seen) == len(plan.lengths):
            epochs.append([])
            seen = set()
        if seen & {*items} or len({*items}) < len(items):
            return None
        seen |= {*items}
        epochs[-1].append([*step])
    return epochs


def step_findings(plan: Plan, alone: Steps) -> Iterator[Finding]:
    """An epoch's rows in steps."""
    epochs = epochs_of(plan, alone)
    if epochs is None:
        found = "a step has a sequence again before the steps so far have had all of the "
        yield TABLE("wrong-steps", f"{found}{len(plan.lengths)}: epochs overlap")
        return
    for number, steps in enumerate(epochs):
        sizes = [len(step) for step in steps]
        full, rest = divmod(sum(sizes), plan.rows_per_step)
        due = [plan.rows_per_step] * full + [rest] * (rest > 0)
        if sizes != due:
            found = f"epoch {number} has steps of {some(sizes, 9)} rows; with rows_per_step="
            yield TABLE("wrong-steps", f"{found}{plan.rows_per_step}, these are {some(due, 9)}")
            return


def fill_findings(plan: Plan, alone: Steps) -> Iterator[Finding]:
    """Rows up to the budget, and no two that fit into one."""
    for number, steps in enumerate(epochs_of(plan, alone) or []):
        rows = [row for step in steps for row in step]
        by_fill = sorted((sum(plan.lengths[item] for item in row), row) for row in rows)
        if by_fill[-1][0] > plan.budget:
            lengths = [plan.lengths[item] for item in by_fill[-1][1]]
            found = f"epoch {number} has a row of lengths {some(lengths, 12)}, "
            yield TABLE("over-budget", f"{found}{by_fill[-1][0]} tokens of {plan.budget}")
            return
        (least, _), (second, _) = by_fill[:2]
        if least + second <= plan.budget:
            found = f"epoch {number} has {counted(len(rows), 'row')}, two of them with {least} "
            found += f"and {second} tokens; the budget is {plan.budget}"
            yield TABLE("rows-not-full", found)
            return


def order_findings(plan: Plan, orders: Sequence[Sequence[Row]]) -> Iterator[Finding]:
    """Each pair of seed and epoch has an order of its own, and is shuffled."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    lengths = lone_lengths(plan)
    for number, steps in enumerate(orders):
        sizes = [len(step) for step in steps]
        if sizes != [LONE - 1, 1] * EPOCHS:
            found = f"{LONE} rows in steps of {LONE - 1} make steps of {some(sizes)} rows"
            yield TABLE("wrong-steps", found)
            return
        epochs = [[*steps[at], *steps[at + 1]] for at in range(0, len(steps), 2)]
        for epoch, items in enumerate(epochs):
            seed = plan.seed + number
            if (other := seen.setdefault(tuple(items), (seed, epoch))) != (seed, epoch):
                code = "same-order" if other[0] == seed else "orders-alias"
                found = f"seed {other[0]} in epoch {other[1]} and seed {seed} in epoch {epoch} "
                yield TABLE(code, f"{found}have the same order: {some(items)}")
                return
        for place in range(LONE):
            if len({lengths[items[place]] for items in epochs}) == 1:
                found = f"in {len(epochs)} epochs, row {place} always had "
                yield TABLE("rows-not-shuffled", f"{found}{lengths[epochs[0][place]]} tokens")
                return


def refusal_findings(
    plan: Plan, refusals: Sequence[Sequence[list[Any] | None]]
) -> Iterator[Finding]:
    """A sequence that is too long is refused by its index, on every rank."""
    for item, by_rank in zip(plan.too_long, refusals, strict=True):
        where = f"sequence {item} has {plan.budget + 1} tokens, the budget is {plan.budget}: "
        for rank, refused in enumerate(by_rank):
            if refused is None:
                found = f"{where}rank {rank} accepted it"
            elif not refused[1]:
                found = f"{where}rank {rank} raised {refused[0]}: {refused[2]}"
            elif not re.search(rf"(?<!\d){item}(?!\d)", refused[2]):
                found = f"{where}rank {rank}'s message doesn't have its index: {refused[2]}"
            else:
                continue
            yield TABLE("too-long-accepted", found)
            return


def pack_findings(
    plan: Plan, row: Sequence[Row], packed: dict[str, list[Any]]
) -> Iterator[Finding]:
    """Tokens, segment ids and positions of one row."""
    sizes = [len(sequence) for sequence in row]
    free = [0] * (plan.budget - sum(sizes))
    where = f"of lengths {sizes}, with a budget of {plan.budget}, pack made "
    ours, kinds = packed["rows"], {*packed["dtypes"]}
    if [len(array) for array in ours] != [plan.budget] * 3 or kinds != {"int64"}:
        found = f"{where}{some([len(array) for array in ours])} elements of {some([*kinds])}"
        yield TABLE("wrong-width", found)
        return
    segments = [at for at, size in enumerate(sizes, start=1) for _ in range(size)] + free
    positions = [position for size in sizes for position in range(size)] + free
    tokens = [token for sequence in row for token in sequence] + [PAD_ID] * len(free)
    starts = [0, *accumulate(sizes)]
    for code, name, own, due in (
        ("wrong-tokens", "tokens", ours[0], tokens),
        ("wrong-segments", "segment ids", ours[1], segments),
        ("wrong-positions", "positions", ours[2], positions),
    ):
        if own != due:
            found = f"{where}{name} {some(own, 12)}; sequences begin at {some(starts[:-1])}, "
            yield TABLE(code, f"{found}padding at {starts[-1]}")
            return

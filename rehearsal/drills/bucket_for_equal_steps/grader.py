"""An epoch cut into steps by length and dealt to one, two and three ranks; and its padding.

Two processes, with different global generators, plan for the ranks of all world sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .observed import run
from .plan import PAD_ID, Plan, plans

CODES = TABLE.codes

Lists = Sequence[Sequence[int]]  # of one rank, by step


def judge(plan: Plan, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first part that has a finding explains the rest."""
    answer = reports[0].answer
    by_world = answer["by_world"]
    return first_of(
        reproducible_findings(reports),
        *(count_findings(by_rank) for by_rank in by_world.values()),
        *(epoch_findings(plan, by_rank) for by_rank in by_world.values()),
        *(step_findings(by_world["1"][0], by_rank) for by_rank in by_world.values()),
        *(longest_findings(plan, by_rank) for by_rank in by_world.values()),
        order_findings(plan, answer["orders"]),
        shuffle_findings(plan, answer["orders"]),
        company_findings(plan, answer["orders"]),
        refusal_findings(plan, answer["refusals"]),
        *(
            collate_findings(sequences, collated)
            for sequences, collated in zip(plan.sequences, answer["collated"], strict=True)
        ),
    )


# ---------------------------------------------------------------- the steps


def reproducible_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Equal arguments give equal steps, and nothing outside takes part."""
    first, second = (report.answer for report in reports)
    if first["again"] != first["by_world"]["1"][0]:
        found = "in one process, two calls with equal arguments returned different lists"
        yield TABLE("order-not-reproducible", found)
    elif first["by_world"] != second["by_world"]:
        found = "in two processes, calls with equal arguments returned different lists"
        yield TABLE("order-not-reproducible", found)
    if first["changed"]:
        found = f"planning an epoch changed {some(first['changed'])}"
        yield TABLE("moves-global-random-state", found)


def merged(by_rank: Sequence[Lists]) -> list[list[int]]:
    """By step: the sequences of all ranks."""
    return [[item for own in step for item in own] for step in zip(*by_rank, strict=True)]


def count_findings(by_rank: Sequence[Lists]) -> Iterator[Finding]:
    """All ranks make the same number of steps."""
    counts = [len(own) for own in by_rank]
    if len({*counts}) > 1:
        found = f"on {len(counts)} ranks, these have {some(counts)} steps"
        yield TABLE("ranks-make-different-steps", found)


def epoch_findings(plan: Plan, by_rank: Sequence[Lists]) -> Iterator[Finding]:
    """All ranks together train the steps of an epoch."""
    where, count = f"on {counted(len(by_rank), 'rank')}, ", len(plan.lengths)
    steps = merged(by_rank)
    extra, missing = miscounted([item for step in steps for item in step], count)
    if unknown := [item for step in steps for item in step if not 0 <= item < count]:
        found = f"{where}a step has sequence {unknown[0]}; there are {count}, from 0 on"
        yield TABLE("never-trained", found)
    elif extra or missing:
        code, item = ("trained-twice", extra[0]) if extra else ("never-trained", missing[0])
        words = "are trained more than once" if extra else "are in no step"
        found = f"{where}{len(extra or missing)} of {count} sequences {words}, such as "
        yield TABLE(code, f"{found}sequence {item}, of length {plan.lengths[item]}")
    else:
        yield from first_of(bucket_findings(plan, steps, where), size_findings(plan, steps))


def bucket_findings(plan: Plan, steps: Lists, where: str) -> Iterator[Finding]:
    """Each step is in one bucket."""
    for number, step in enumerate(steps):
        if len({plan.bucket(item) for item in step}) > 1:
            lengths = sorted(plan.lengths[item] for item in step)
            found = f"{where}step {number} has lengths {some(lengths, 9)}; the bounds are "
            yield TABLE("buckets-mixed", found + some(plan.bounds))
            return


def size_findings(plan: Plan, steps: Lists) -> Iterator[Finding]:
    """Each bucket makes full steps, and one with the rest."""
    for bucket, due in enumerate(plan.sizes()):
        own = [len(step) for step in steps if step and plan.bucket(step[0]) == bucket]
        if sorted(own, reverse=True) != due:
            found = f"the {sum(due)} sequences in the bucket to {plan.bounds[bucket]} are in "
            found += f"steps of {some(own)}; with global_batch_size={plan.global_batch_size}, "
            yield TABLE("wrong-step-size", f"{found}these are {some(due)}")
            return
    if empty := [number for number, step in enumerate(steps) if not step]:
        found = f"step {empty[0]} has no sequence on any rank"
        yield TABLE("wrong-step-size", found)


def step_findings(alone: Lists, by_rank: Sequence[Lists]) -> Iterator[Finding]:
    """Several ranks share the steps of one."""
    for number, lists in enumerate(zip(*by_rank, strict=True)):
        where = f"on {len(by_rank)} ranks, step {number} "
        step = [item for own in lists for item in own]
        sizes = [len(own) for own in lists]
        if sorted(step) != sorted(alone[number]):
            found = f"{where}has sequences {some(sorted(step), 8)}; on one rank, "
            yield TABLE("steps-depend-on-ranks", found + some(sorted(alone[number]), 8))
            return
        if max(sizes) - min(sizes) > 1:
            found = f"{where}gives its ranks {some(sizes)} of {len(step)} sequences"
            yield TABLE("uneven-share", found)
            return


def longest_findings(plan: Plan, by_rank: Sequence[Lists]) -> Iterator[Finding]:
    """Each rank has one of the longest sequences."""
    for number, lists in enumerate(zip(*by_rank, strict=True)):
        step = [item for own in lists for item in own]
        longest = sorted(plan.lengths[item] for item in step)[-len(by_rank) :]
        ours = sorted(max(plan.lengths[item] for item in own) for own in lists if own)
        if ours != longest:
            found = f"on {len(by_rank)} ranks, step {number} pads its ranks to {some(ours)} "
            found += f"tokens; its longest sequences have {some(longest)}"
            yield TABLE("long-ones-together", found)
            return


# ---------------------------------------------------------------- many epochs


def order_findings(plan: Plan, orders: Sequence[Sequence[Lists]]) -> Iterator[Finding]:
    """Each pair of seed and epoch has an order of its own."""
    seen: dict[str, tuple[int, int]] = {}
    for number, epochs in enumerate(orders):
        for epoch, steps in enumerate(epochs):
            key = repr([sorted(step) for step in steps])
            seed = plan.seed + number
            if (other := seen.setdefault(key, (seed, epoch))) != (seed, epoch):
                code = "same-order" if other[0] == seed else "orders-alias"
                found = f"seed {other[0]} in epoch {other[1]} and seed {seed} in epoch {epoch} "
                yield TABLE(code, f"{found}have the same steps in the same order")
                return


def shuffle_findings(plan: Plan, orders: Sequence[Sequence[Lists]]) -> Iterator[Finding]:
    """The buckets' steps are mixed, in another way each time."""
    mixes = [
        tuple(plan.bucket(step[0]) for step in steps if step)
        for epochs in orders
        for steps in epochs
    ]
    in_blocks = [mix for mix in mixes if len([*groupby(mix)]) == len({*mix})]
    if 2 * len(in_blocks) > len(mixes):
        found = f"in {len(in_blocks)} of {len(mixes)} epochs, all steps of a bucket follow one "
        found += f"another: in epoch 0, the buckets are {some(mixes[0], 12)}"
        yield TABLE("steps-not-shuffled", found)
    elif len({*mixes}) < len(mixes) // 30:
        found = f"{len(mixes)} epochs have {counted(len({*mixes}), 'order')} of buckets, such "
        yield TABLE("steps-not-shuffled", f"{found}as {some(mixes[0], 12)}")


def company_findings(plan: Plan, orders: Sequence[Sequence[Lists]]) -> Iterator[Finding]:
    """Any two sequences of a bucket meet now and then, and not always."""
    together: Counter[tuple[int, int]] = Counter()
    epochs = [steps for own in orders for steps in own]
    for steps in epochs:
        for step in steps:
            together.update((a, b) for a in step for b in step if a < b)
    sizes = plan.sizes()
    items = range(len(plan.lengths))
    for a in items:
        for b in items[a + 1 :]:
            if (bucket := plan.bucket(a)) != plan.bucket(b) or len(sizes[bucket]) < 2:
                continue
            met = together[a, b]
            if met in (0, len(epochs)):
                found = f"sequences {a} and {b}, of lengths {plan.lengths[a]} and "
                found += f"{plan.lengths[b]} in one bucket, shared a step in "
                yield TABLE("same-company", f"{found}{met} of {len(epochs)} epochs")
                return


# ---------------------------------------------------------------- refusals and padding


def refusal_findings(plan: Plan, refusals: Sequence[list[Any] | None]) -> Iterator[Finding]:
    """A sequence that is too long is refused by its index, on every rank."""
    length = plan.bounds[-1] + 1
    where = f"sequence {plan.too_long} has {length} tokens, the last bound is {length - 1}: "
    for rank, refused in enumerate(refusals):
        if refused is None:
            found = f"{where}rank {rank} accepted it"
        elif not refused[1]:
            found = f"{where}rank {rank} raised {refused[0]}: {refused[2]}"
        elif not re.search(rf"(?<!\d){plan.too_long}(?!\d)", refused[2]):
            found = f"{where}rank {rank}'s message doesn't have its index: {refused[2]}"
        else:
            continue
        yield TABLE("too-long-accepted", found)
        return


def collate_findings(
    sequences: Sequence[Sequence[int]], collated: dict[str, Any]
) -> Iterator[Finding]:
    """Tokens and mask of one list."""
    sizes = [len(sequence) for sequence in sequences]
    width, where = max(sizes, default=0), f"of lengths {sizes}, collate made "
    shape = [len(sizes), width]
    tokens = [[*own, *[PAD_ID] * (width - len(own))] for own in sequences]
    mask = [[1] * size + [0] * (width - size) for size in sizes]
    if collated["shapes"] != [shape, shape]:
        found = f"{where}tensors of {collated['shapes']}; both are {shape}"
        yield TABLE("wrong-width", found)
    elif collated["dtypes"] != ["int64", "bool"]:
        yield TABLE("wrong-dtype", f"{where}{' and '.join(collated['dtypes'])}")
    elif collated["tokens"] != tokens:
        found = f"{where}the rows {some(collated['tokens'], 4)}; given were "
        yield TABLE("wrong-tokens", f"{found}{some(list(sequences), 4)} with pad_id={PAD_ID}")
    elif collated["mask"] != mask:
        found = f"{where}the mask {some(collated['mask'], 4)} for {some(list(sequences), 4)}"
        yield TABLE("wrong-mask", found)


def scenarios(seed: int) -> list[Scenario]:
    """Steps that the ranks don't divide, and steps smaller than the number of ranks."""
    return [
        Scenario(
            name=name,
            body=partial(run, plan),
            judge=partial(judge, plan),
            world_size=2,
            deadline_s=8,
        )
        for name, plan in plans(seed).items()
    ]

"""The findings about config and data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some

from .draws import SmallRun
from .findings import TABLE, Earlier


def config_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Bad values are refused by name, good ones kept."""
    answer = reports[0].answer
    if answer["alone"] is not None:
        kind, _, text = answer["alone"]
        found = f"TrainConfig() raised {kind}: {text[:120]}"
        yield TABLE("refuses-a-good-value", found, "at the defaults")._replace(
            rule="every field has a default"
        )
    for name, given, kept in answer["lost"]:
        yield TABLE("config-changes", f"TrainConfig({name}={given}) has {name}={kept}")
    for name, value, refused in answer["good"]:
        if refused is not None:
            found = f"TrainConfig({name}={value}) raised {refused[0]}: {refused[2][:120]}"
            yield TABLE("refuses-a-good-value", found)
    for name, value, refused in answer["bad"]:
        if refused is None:
            yield TABLE("accepts-nonsense", f"TrainConfig({name}={value}) raised nothing")
            continue
        kind, is_value_error, text = refused
        if not (is_value_error and name in text and value.strip("-") in text):
            what = "" if is_value_error else ", which isn't a ValueError"
            found = (
                f"TrainConfig({name}={value}) raised {kind}{what}: {text[:120] or 'no message'}"
            )
            yield TABLE("refusal-says-nothing", found)
    if answer["changed"]:
        found = f"an assignment changed {some([f'cfg.{name}' for name in answer['changed']])}"
        yield TABLE("config-changes", found)


def orders_of(steps: Sequence[Any]) -> dict[int, list[int]]:
    """Each epoch's samples in order, from the steps of one rank that trains alone."""
    orders: dict[int, list[int]] = {}
    for epoch, samples, _ in steps:
        orders.setdefault(epoch, []).extend(samples)
    return orders


def data_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """One order, whoever asks for it, and from wherever."""
    answer, num_epochs = reports[0].answer, plan.epochs
    alone, n, batch = answer["alone"], plan.num_samples, plan.global_batch_size
    epochs = [epoch for epoch, _, _ in alone]
    wanted_epochs = sorted(list(range(num_epochs)) * plan.steps_per_epoch)
    if epochs != wanted_epochs:
        found = f"with {n} samples, global_batch_size={batch} and max_epochs={num_epochs}, the "
        have = (
            f"steps by epoch are {dict(Counter(epochs))}" if epochs else "sampler has no steps"
        )
        found += f"{have}, not {plan.steps_per_epoch} in each of epochs 0 to {num_epochs - 1}"
        if sorted(epochs) == wanted_epochs:
            found = f"the steps of one rank have the epochs {some(epochs, 18)}, not in order"
        yield TABLE("wrong-step-size", found)
        return
    for epoch, order in orders_of(alone).items():
        if sorted(order) != list(range(n)):
            counts = Counter(order)
            twice = [i for i in counts if counts[i] > 1]
            found = f"epoch {epoch} of {n} samples, on one rank: "
            found += (
                f"missing: {some(sorted({*range(n)} - {*order})) or 'none'}; more than once: "
            )
            found += some(sorted(twice)) or "none"
            if others := sorted({*order} - {*range(n)}):
                found += f"; not in the dataset: {some(others)}"
            yield TABLE("not-once-per-epoch", found)
            return
    for number, (_, samples, said) in enumerate(alone):
        left = n - number % plan.steps_per_epoch * batch
        if not len(samples) == said == min(batch, left):
            found = f"step {number + 1} has {len(samples)} samples and S={said}; {left} of the "
            found += f"epoch's {n} samples were left, and global_batch_size is {batch}"
            yield TABLE("wrong-step-size", found)
            return
    yield from order_findings(answer, plan)
    if reports[1].answer["alone"] != alone:
        found = f"in a second process, the order of seed {plan.seed} is a different one"
        look = "at what the order is drawn from: Python salts hash() in each process"
        yield TABLE("order-not-a-function", found, look)
        return
    for size, ranks in answer["ranks"].items():
        yield from share_findings(ranks, alone, f"on {size} ranks")
    for position, ranks in answer["positions"]:
        steps = [len(rank) for rank in ranks]
        ends = [rank[0][0] for rank in ranks if rank]
        wanted = [rank[position:] for rank in answer["ranks"]["2"]]
        if ranks != wanted:
            found = (
                f"at position {position} of {plan.total}, with {plan.steps_per_epoch} steps "
            )
            found += f"per epoch, the samplers of 2 ranks yield {some(steps)} steps"
            found += f", the first in epoch {ends[0]}" if ends else ""
            yield TABLE("wrong-position", f"{found}: not the steps after that position")
            return
    of_0, of_0_again = answer["seed 0"]["rows"], answer["seed 0 again"]["rows"]
    for what, once, again in (
        ("read again, backward, from a new dataset", answer["rows"], answer["rows again"]),
        ("in a second process", answer["rows"], reports[1].answer["rows"]),
        ("with seed 0, read again from a new dataset", of_0, of_0_again),
    ):
        if others := [i for i, row in enumerate(once) if row != again[i]]:
            found = f"{what}, sample {others[0]} of the same config is a different one"
            yield TABLE("samples-change", found)
            return


def order_findings(answer: Mapping[str, Any], plan: Any) -> Iterator[Finding]:
    """Whether the order is a function of its key, and different for another key."""
    alone = answer["alone"]
    orders = orders_of(alone)
    for what, changed in (
        ("again", "was drawn a second time"),
        (
            "other settings",
            "was drawn with a different micro_batch_size, learning_rate and max_epochs",
        ),
    ):
        if answer[what] != alone:
            yield TABLE(
                "order-not-a-function", f"the order of seed {plan.seed} {changed}, and differs"
            )
            return
    if answer["seed 0"]["alone"] != answer["seed 0 again"]["alone"]:
        found = "the order of seed 0 was drawn a second time, and differs"
        yield TABLE("order-not-a-function", found, "at what you do with a seed of 0")
        return
    if orders_of(answer["other batch"]) != orders:
        found = "with a different global_batch_size, the epochs have different orders"
        yield TABLE("order-not-a-function", found)
        return
    of_keys = [((seed, epoch), order) for seed, epoch, order in answer["keys"]]
    of_keys += [((plan.seed, epoch), orders[epoch]) for epoch in orders]
    others = orders_of(answer["other seed"])
    of_keys += [((plan.seed + 1, epoch), others[epoch]) for epoch in others]
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for key, order in of_keys:
        other = seen.setdefault(tuple(order), key)
        if other != key:
            keys = " and ".join(f"(seed {seed}, epoch {epoch})" for seed, epoch in (other, key))
            yield TABLE("orders-repeat", f"{keys} have the same order")
            return


def share_findings(ranks: Sequence[Any], alone: Sequence[Any], where: str) -> Iterator[Finding]:
    """Whether the ranks together have the steps of one rank, in fair shares."""
    if len({len(steps) for steps in ranks} | {len(alone)}) > 1:
        found = (
            f"{where}, the ranks have {some([len(s) for s in ranks])} steps; one rank alone "
        )
        yield TABLE("order-follows-the-ranks", f"{found}has {len(alone)}")
        return
    for number, shares in enumerate(zip(*ranks, strict=True)):
        epoch, samples, size = alone[number]
        together = sorted(i for _, own, _ in shares for i in own)
        if len(together) > len(set(together)):
            twice = [i for i, count in Counter(together).items() if count > 1]
            noun = "sample" if len(twice) == 1 else "samples"
            found = f"{where}, step {number + 1} deals {noun} {some(twice)} more than once"
            yield TABLE("not-once-per-epoch", found)
            return
        if lost := sorted({*samples} - {*together}) if {*together} < {*samples} else []:
            noun = "sample" if len(lost) == 1 else "samples"
            found = f"{where}, step {number + 1} leaves out {noun} {some(lost, 9)}"
            yield TABLE("not-once-per-epoch", found)
            return
        if together != sorted(samples):
            found = (
                f"{where}, step {number + 1} has samples {some(together, 9)}; on one rank it "
            )
            yield TABLE("order-follows-the-ranks", f"{found}has {some(sorted(samples), 9)}")
            return
        if any((e, s) != (epoch, size) for e, _, s in shares):
            found = (
                f"{where}, step {number + 1} yields (epoch, S) {[[e, s] for e, _, s in shares]}"
            )
            yield TABLE("wrong-step-size", f"{found}; on one rank, [{epoch}, {size}]")
            return
        counts = [len(own) for _, own, _ in shares]
        if max(counts) - min(counts) > 1:
            found = f"{where}, step {number + 1} deals {some(counts)} samples to the ranks"
            yield TABLE("unfair-shares", found)
            return

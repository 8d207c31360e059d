"""The cells that need no second process: config and data."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from rehearsal.kit.observe.refusal import refusal
from .draws import EPOCHS, plan_of, plan_of_answer
from .findings import TABLE

Earlier = Mapping[str, Sequence[RankReport]]

# ---------------------------------------------------------------- config

MAY_BE_ZERO = ("seed", "dropout")


def config_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Good values, then one bad value at a time."""
    settings = plan_of(context.seed).settings(context.folder / "config")
    cfg = learner.TrainConfig(**settings)
    learner.TrainConfig()
    kept = {name: repr(getattr(cfg, name, None)) for name in settings}
    numbers = [name for name, value in settings.items() if not isinstance(value, str)]
    bad: list[Any] = []
    good: list[Any] = []
    for name in numbers:
        values = [-1, float("nan"), float("inf")] + ([] if name in MAY_BE_ZERO else [0])
        for value in values:
            refused = refusal(learner.TrainConfig, **{**settings, name: value})
            bad.append([name, repr(value), refused])
        fine = 0 if name in MAY_BE_ZERO else settings[name] * 2
        fine = 0.5 if name == "dropout" and context.seed % 2 else fine
        good.append([name, repr(fine), refusal(learner.TrainConfig, **settings | {name: fine})])
    with contextlib.suppress(AttributeError, TypeError):
        cfg.seed = settings["seed"] + 1
    return {
        "lost": [[n, repr(settings[n]), kept[n]] for n in kept if kept[n] != repr(settings[n])],
        "changed": cfg.seed != settings["seed"],
        "bad": bad,
        "good": good,
    }


def config_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """Bad values are refused by name, good ones kept."""
    answer = reports[0].answer
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
            found = f"TrainConfig({name}={value}) raised {kind}: {text[:120] or 'no message'}"
            yield TABLE("refusal-says-nothing", found)
    if answer["changed"]:
        yield TABLE("config-changes", "an assignment to cfg.seed succeeded")


# ---------------------------------------------------------------- data


def steps_of(learner: SimpleNamespace, cfg: Any, rank: int, size: int, position: int) -> Any:
    """What a sampler yields, as plain data."""
    sampler = learner.ResumeAwareDistributedSampler(cfg, rank, size, position)
    return [[int(e), [int(i) for i in samples], int(s)] for e, samples, s in sampler]


def rows_of(dataset: Any, count: int) -> list[str]:
    """Every sample's input and label, as text that can be compared."""
    import torch

    def text(part: Any) -> str:
        return torch.as_tensor(part).contiguous().numpy().tobytes().hex()

    return [" ".join(text(part) for part in dataset[i]) for i in range(count)]


def data_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """The orders of several seeds, sizes and positions, from one and from several ranks."""
    import random

    import torch

    plan = plan_of(context.seed)
    folder, draw = context.folder / "data", random.Random(context.seed + 1)

    def config(**changes: Any) -> Any:
        return learner.TrainConfig(**plan.settings(folder, **changes))

    cfg = config()
    alone = steps_of(learner, cfg, 0, 1, 0)
    torch.manual_seed(draw.randrange(10**6))  # whoever draws from it gets another number now
    random.seed(draw.randrange(10**6))
    answer: dict[str, Any] = {
        "again": steps_of(learner, cfg, 0, 1, 0),
        "ranks": {
            size: [steps_of(learner, cfg, rank, size, 0) for rank in range(size)]
            for size in (2, 3, 4, 5)
        },
        # The run is configured anew: what isn't the order's key must not move the order.
        "other settings": steps_of(
            learner,
            config(micro_batch_size=1, learning_rate=0.5, max_epochs=EPOCHS + 1),
            0,
            1,
            0,
        )[: len(alone)],
        "other batch": steps_of(
            learner, config(global_batch_size=plan.global_batch_size + 2), 0, 1, 0
        ),
        "other seed": steps_of(learner, config(seed=plan.seed + 1), 0, 1, 0),
        # Digits that run into each other, and a sum: keys that collide.
        "key 1, 21": steps_of(learner, config(seed=1, max_epochs=22), 0, 1, 0),
        "key 12, 1": steps_of(learner, config(seed=12, max_epochs=22), 0, 1, 0),
        "positions": [],
    }
    for position in (1, plan.steps_per_epoch, plan.steps_per_epoch + 2, 10, plan.total):
        found = [steps_of(learner, cfg, rank, 2, position) for rank in range(2)]
        answer["positions"].append([position, found])
    rows = rows_of(learner.ToyClassificationDataset(cfg), plan.num_samples)
    torch.manual_seed(draw.randrange(10**6))
    other = learner.ToyClassificationDataset(cfg)
    backward = [other[i] for i in reversed(range(plan.num_samples))][::-1]
    return answer | {
        "alone": alone,
        "rows": rows,
        "rows again": rows_of(backward, plan.num_samples),
        "plan": plan._asdict(),
    }


def orders_of(steps: Sequence[Any]) -> dict[int, list[int]]:
    """Each epoch's samples in order, from the steps of one rank that trains alone."""
    orders: dict[int, list[int]] = {}
    for epoch, samples, _ in steps:
        orders.setdefault(epoch, []).extend(samples)
    return orders


def data_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """One order, whoever asks for it, and from wherever."""
    answer, plan = reports[0].answer, plan_of_answer(reports[0].answer)
    alone, n, batch = answer["alone"], plan.num_samples, plan.global_batch_size
    if [epoch for epoch, _, _ in alone] != sorted(list(range(EPOCHS)) * plan.steps_per_epoch):
        counts = Counter(epoch for epoch, _, _ in alone)
        found = f"with {n} samples, global_batch_size={batch} and max_epochs={EPOCHS}, the "
        found += f"steps by epoch are {dict(counts)}, not {plan.steps_per_epoch} in each of "
        yield TABLE("wrong-step-size", found + f"0 to {EPOCHS - 1}")
        return
    for epoch, order in orders_of(alone).items():
        if sorted(order) != list(range(n)):
            counts = Counter(order)
            twice = [i for i in counts if counts[i] > 1]
            found = f"epoch {epoch} of {n} samples, on one rank: "
            found += (
                f"missing {some(sorted({*range(n)} - {*order})) or 'none'}; more than once "
            )
            yield TABLE("not-once-per-epoch", found + (some(sorted(twice)) or "none"))
            return
    for number, (_, samples, said) in enumerate(alone):
        left = n - number % plan.steps_per_epoch * batch
        if not len(samples) == said == min(batch, left):
            found = f"step {number + 1} has {len(samples)} samples and S={said}; {left} of the "
            found += f"epoch's {n} samples were left, and global_batch_size is {batch}"
            yield TABLE("wrong-step-size", found)
            return
    yield from order_findings(answer, plan)
    for size, ranks in answer["ranks"].items():
        yield from share_findings(ranks, alone, f"on {size} ranks")
    for position, ranks in answer["positions"]:
        steps = [len(rank) for rank in ranks]
        ends = [rank[0][0] for rank in ranks if rank]
        wanted = [rank[position:] for rank in answer["ranks"]["2"]]
        if ranks != wanted:
            found = f"at position {position} of {plan.total}, {plan.steps_per_epoch} steps an "
            found += f"epoch, 2 ranks yield {some(steps)} steps"
            found += f", the first in epoch {ends[0]}" if ends else ""
            yield TABLE("wrong-position", f"{found}, not what follows the first {position}")
            return
    if answer["rows"] != answer["rows again"]:
        yield TABLE("samples-change", "two datasets of one config have different samples")


def order_findings(answer: Mapping[str, Any], plan: Any) -> Iterator[Finding]:
    """Whether the order is a function of its key, and different for another key."""
    alone = answer["alone"]
    orders = orders_of(alone)
    for what, changed in (
        ("again", "was drawn a second time"),
        ("other settings", "was drawn with another micro_batch_size, learning rate and epochs"),
    ):
        if answer[what] != alone:
            yield TABLE(
                "order-not-a-function", f"the order of seed {plan.seed} {changed}, and differs"
            )
            return
    if orders_of(answer["other batch"]) != orders:
        found = "with another global_batch_size, the epochs have other orders"
        yield TABLE("order-not-a-function", found)
        return
    by_key = {(plan.seed, epoch): order for epoch, order in orders.items()}
    by_key |= {(plan.seed + 1, e): o for e, o in orders_of(answer["other seed"]).items()}
    by_key[1, 21] = orders_of(answer["key 1, 21"])[21]
    by_key[12, 1] = orders_of(answer["key 12, 1"])[1]
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for (seed, epoch), order in by_key.items():
        other = seen.setdefault(tuple(order), (seed, epoch))
        if other != (seed, epoch):
            found = (
                f"(seed {other[0]}, epoch {other[1]}) and (seed {seed}, epoch {epoch}) have "
            )
            yield TABLE("orders-repeat", f"{found}the same order")
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
            found = f"{where}, step {number + 1} deals samples {some(together)}"
            yield TABLE("not-once-per-epoch", found)
            return
        if together != sorted(samples):
            found = f"{where}, step {number + 1} has samples {some(together)}; on one rank it "
            yield TABLE("order-follows-the-ranks", f"{found}has {some(sorted(samples))}")
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

"""The two jobs, as they run in each rank: deal whole runs; train, resume, load.

A sampler needs no group, so one process plays all ranks of a run.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from trainer_core.config import TrainConfig

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.random_state import global_changes
from .cpu_limit import at_most
from .plan import Deal, Drawn, Visit

Keys = list[list[int]]  # pairs of epoch and sample
LARGE = 70_000  # samples
MOST_LISTS = 1000  # no iteration is followed further than this


def deals(plan: Drawn, context: RankContext, learner: SimpleNamespace) -> Any:
    """Iterate whole runs at several cuts and world sizes, and the orders of several seeds."""
    close_answers(context)
    # No two ranks have one global state: an order drawn from it differs between them.
    torch.manual_seed(context.rank)
    np.random.seed(context.rank)
    random.seed(context.rank)
    one_by_one = Deal(1, plan.main.micro + 1, plan.epochs, (1,))
    with global_changes() as changed:
        main = {size: dealt(plan, learner, plan.main, size) for size in plan.main.world_sizes}
        others = [
            [dealt(plan, learner, cut, size) for size in cut.world_sizes] for cut in plan.others
        ]
        orders = []
        for seed in plan.seeds:
            sampler = sampler_of(plan, learner, one_by_one, 0, 1, seed)
            orders.append(flat(taken(sampler)))
            sampler.load_state_dict({"position": 1})
            sampler.commit()
    return {"main": main, "others": others, "orders": orders, "changed": changed}


def resumes(plan: Drawn, context: RankContext, learner: SimpleNamespace) -> Any:
    """Peek; train some steps through a loader that prefetches; resume; load a state again."""
    close_answers(context)
    straight = taken(sampler_of(plan, learner, plan.main, context.rank, 2))
    sampler = sampler_of(plan, learner, plan.main, context.rank, 2)
    size = micro_steps_of(sampler)
    states = {"first": position_of(sampler)}
    taken(sampler, plan.peek)
    states["peeked"] = position_of(sampler)
    loader: DataLoader[Any] = DataLoader(
        Echo(),
        batch_sampler=Plain(sampler),
        collate_fn=as_they_are,
        num_workers=plan.workers[context.rank],
    )
    batches = iter(loader)
    states["fetched"] = position_of(sampler)
    trained, positions, kept = [], [], sampler.state_dict()
    for step in range(plan.committed):
        trained += list(islice(batches, size))
        sampler.commit()
        positions.append(position_of(sampler))
        if step == plan.back:
            kept = sampler.state_dict()
    saved = {"position": position_of(sampler)}
    return {
        "micro_steps": size,
        "straight": straight,
        "by_hand": committed_after_each_list(plan, learner, context.rank),
        "trained": trained,
        "states": states,
        "positions": positions,
        "kept": kept["position"],
        "left": length_of(sampler),
        "again": taken(sampler),
        "resumed": dealt(plan, learner, plan.main, plan.resumed_on[context.rank], saved),
        "at_an_epoch": dealt(plan, learner, plan.main, 3, {"position": plan.steps}),
        "at_the_end": dealt(plan, learner, plan.main, 2, {"position": plan.total}),
        "back": loaded_again(plan, sampler),
        **late_positions(plan, learner),
    }


def committed_after_each_list(plan: Drawn, learner: SimpleNamespace, rank: int) -> list[Keys]:
    """An iteration during which the position runs to the end of the plan, list by list."""
    sampler = sampler_of(plan, learner, plan.main, rank, 2)
    lists = []
    for keys in islice(iter(sampler), MOST_LISTS):
        lists.append(pairs_in(keys))
        if len(lists) <= plan.total:
            sampler.commit()
    return lists


def loaded_again(plan: Drawn, sampler: Any) -> dict[str, Any]:
    """What a sampler that has trained does with an earlier state."""
    state = {"position": plan.back}
    sampler.load_state_dict(state)
    loaded, lists = position_of(sampler), taken(sampler)
    sampler.commit()
    committed = position_of(sampler)
    return {"loaded": loaded, "lists": lists, "committed": committed, "state": state}


def late_positions(plan: Drawn, learner: SimpleNamespace) -> dict[str, Any]:
    """The rest of an epoch in the middle of an endless plan, and the first equal orders.

    None are compared if the former took too long: they would, too.
    """
    cut = plan.main._replace(epochs=2 * plan.far_epoch)
    sampler = sampler_of(plan, learner, cut, 0, 1)
    try:
        with at_most(0.5):
            sampler.load_state_dict({"position": plan.far_epoch * plan.steps + 1})
            far = taken(sampler, micro_steps_of(sampler) * (plan.steps - 1))
    except (TimeoutError, MemoryError):
        return {"far": None, "equal": [], "large": []}
    visits = sorted({visit for pair in plan.collisions for visit in pair})
    orders = {visit: order_of(plan, learner, visit) for visit in visits}
    equal = [at for at, (a, b) in enumerate(plan.collisions) if orders[a] == orders[b]]
    return {"far": far, "equal": equal[:1], "large": across_a_block(plan, learner)}


def across_a_block(plan: Drawn, learner: SimpleNamespace) -> list[Keys]:
    """Two steps of a large dataset, from the one with slot 2**16 on.

    An order that is computed in blocks most likely begins one there.
    """
    batch = plan.main.batch | 1  # odd: no block ends with a step
    large = plan._replace(num_samples=LARGE)
    sampler = sampler_of(large, learner, Deal(batch, LARGE, 1, (1,)), 0, 1)
    sampler.load_state_dict({"position": 2**16 // batch})
    return taken(sampler, 2)


def order_of(plan: Drawn, learner: SimpleNamespace, visit: Visit) -> list[int]:
    """The first samples of an epoch, dealt one by one: enough to tell two orders apart."""
    cut = Deal(1, 1, visit.epoch + 1, (1,))
    sampler = sampler_of(plan, learner, cut, 0, 1, visit.seed)
    sampler.load_state_dict({"position": visit.epoch * plan.num_samples})
    return [sample for _, sample in flat(taken(sampler, 8))]


def dealt(
    plan: Drawn,
    learner: SimpleNamespace,
    cut: Deal,
    world_size: int,
    state: dict[str, int] | None = None,
) -> dict[str, Any]:
    """What each rank gets from a state on, and what len() promises."""
    samplers = [sampler_of(plan, learner, cut, rank, world_size) for rank in range(world_size)]
    if state is not None:
        for sampler in samplers:
            sampler.load_state_dict(dict(state))
    answer = {
        "micro_steps": [micro_steps_of(sampler) for sampler in samplers],
        "lengths": [length_of(sampler) for sampler in samplers],
        "ranks": [taken(sampler) for sampler in samplers],
        "loaded": position_of(samplers[0]),
    }
    samplers[0].commit()
    return {**answer, "committed": position_of(samplers[0])}


def close_answers(context: RankContext) -> None:
    """trainer_core's own schedule and sampler can't be called."""
    names = ["StepSchedule", "ResumeAwareDistributedSampler"]
    close_the_answer(context, "trainer_core.data", names)


def sampler_of(
    plan: Drawn,
    learner: SimpleNamespace,
    cut: Deal,
    rank: int,
    world_size: int,
    seed: int | None = None,
) -> Any:
    """The learner's sampler, made as a run makes it; with the plan's seed, or another."""
    cfg = TrainConfig(
        dataset_size=None if cut.is_bare else plan.num_samples,
        seed=plan.seed if seed is None else seed,
        micro_batch_size=cut.micro,
        max_epochs=cut.epochs,
        pinned_global_batch_size=cut.batch,
        world_size=1 if cut.is_bare else world_size,
    )
    schedule = learner.StepSchedule(plan.num_samples, cut.batch, cut.epochs)
    return learner.ResumeAwareDistributedSampler(schedule, cfg, rank, world_size)


def taken(sampler: Any, most: int = MOST_LISTS) -> list[Keys]:
    """The micro-batches of an iteration started now, all fetched before the first is read."""
    return [pairs_in(keys) for keys in list(islice(iter(sampler), most))]


def pairs_in(keys: Any) -> Keys:
    """What an iteration yielded, as plain data; a TypeError with what it was if it can't be."""
    try:
        return [[int(epoch), int(sample)] for epoch, sample in keys]
    except (TypeError, ValueError):
        what = "not a list of pairs (epoch, sample)"
        raise TypeError(f"iterating yields {str(keys)[:80]}, {what}") from None


def position_of(sampler: Any) -> int:
    """The position in the sampler's state; a TypeError with the state if there is none."""
    state = sampler.state_dict()
    try:
        return operator.index(state["position"])
    except (TypeError, KeyError, IndexError):
        wanted = "not {'position': an int}"
        raise TypeError(f"state_dict() returned {str(state)[:80]}, {wanted}") from None


def micro_steps_of(sampler: Any) -> int:
    """The sampler's micro_steps; a TypeError with what it is if that isn't a number."""
    try:
        return int(sampler.micro_steps)
    except (TypeError, ValueError):
        raise TypeError(f"micro_steps is {sampler.micro_steps!r:.80}, not an int") from None


def length_of(sampler: Any) -> int:
    """Its len(), which may exceed what Python's own function allows."""
    try:
        return operator.index(sampler.__len__())
    except TypeError:
        raise TypeError(f"len() is {sampler.__len__()!r:.80}, not an int") from None


def flat(batches: list[Keys]) -> Keys:
    """Their keys in one list."""
    return [key for keys in batches for key in keys]


class Plain(Sampler[Keys]):
    """A sampler's keys as lists, since workers can't unpickle a class typed in a notebook."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Keys]:
        for keys in self.sampler:
            yield [list(key) for key in keys]


class Echo(Dataset[list[int]]):
    """Returns its keys, so a loader shows what its sampler said."""

    def __getitem__(self, key: Any) -> list[int]:
        return list(key)


def as_they_are(batch: Any) -> Any:
    """A collate function that does nothing."""
    return batch

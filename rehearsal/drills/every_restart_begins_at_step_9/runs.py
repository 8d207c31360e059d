"""What an earlier job left in a folder, and one start there. In the ranks."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, watch_moments
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of
from rehearsal.kit.observe.stream import SampleStream

from .plan import MOMENTS, Folder, Plan


def stream_of(plan: Folder) -> SampleStream:
    """The samples of a run."""
    return SampleStream(steps=plan.steps, share=plan.share, lr=plan.lr)


def prepare(context: RankContext, plan: Folder) -> None:
    """What the earlier job left, copied, so that an older file has a later timestamp.

    Of that job's steps, only those that left a checkpoint are trained. Rank 0 records the
    weights that a run from the newest one ends with.
    """
    folder = run_folder(context, plan.name)
    if context.rank == 0:
        model = OddNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr, momentum=0.9)
        shares = [stream_of(plan).shares(r, plan.world_size) for r in range(plan.world_size)]
        for step in (*plan.found, *range(plan.newest + 1, plan.steps + 1)):
            parts = [next(own(step - 1)) for own in shares]
            inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
            optimizer.zero_grad()
            (model(inputs) - targets).pow(2).sum(1).mean().backward()
            optimizer.step()
            if step in plan.found:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                path = folder / f"step-{step}.pt"
                torch.save({"step": step, **state}, path)
                os.utime(path, (1e9 - step, 1e9 - step))
        for name in plan.leftovers:
            (folder / name).write_bytes(b"PK")
        context.record("expected", folder=plan.name, weights=weights_of(model))
    dist.barrier()


def start(context: RankContext, learner: SimpleNamespace, plan: Folder, name: str = "") -> Any:
    """One start in a folder: the run's own, or one of another name."""
    path = context.folder / (name or plan.name)
    # All have seen the folder before anybody writes.
    there = sorted(item.name for item in path.iterdir())
    dist.barrier()
    context.record("start", folder=path.name, there=there)
    model = OddNet()
    watch_samples(context, model)
    shares = stream_of(plan).shares(context.rank, plan.world_size)
    learner.train(model, shares, path, lr=plan.lr, keep=plan.keep)
    dist.barrier()
    files = [item.name for item in path.glob("step-*.pt")]
    context.record("end", folder=path.name, weights=weights_of(model), files=files)


def first_job(plan: Plan, context: RankContext, learner: SimpleNamespace) -> None:
    """Resume from what an earlier job left, until the kill."""
    context.init_group()
    prepare(context, plan.killed)
    start(context, learner, plan.killed)


def second_job(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Resume after the kill; start in two other folders; resume from what kills would leave."""
    context.init_group()
    for folder in (plan.empty, plan.hundreds):
        prepare(context, folder)
    start(context, learner, plan.killed)
    start(context, learner, plan.empty)
    path, before = (context.folder / plan.hundreds.name).resolve(), context.count("forward")
    with watch_moments(path, lambda: context.count("forward") - before) as moments:
        start(context, learner, plan.hundreds)
    kept = []
    for number, moment in enumerate(few_of(moments, random.Random(plan.seed))):
        name = f"moment-{context.rank}-{number}"
        moment.restore(context.folder / name)
        where = {"folder": name, "rank": context.rank, "where": moment.where}
        kept.append({**where, "passes": moment.note})
    context.record("moments", kept=kept)
    dist.barrier()
    for restored in sorted(path.parent.glob("moment-*")):
        start(context, learner, plan.hundreds, restored.name)


def few_of(moments: Sequence[Moment], draw: random.Random) -> list[Moment]:
    """One of each kind, drawn, those in the middle of a write first: each costs a start.

    A kind is an operation on a file, or a write that is cut, apart from the digits in its name.
    Of one write, the places at which it is cut leave much the same. What is there at the end is
    what a start without a kill finds.
    """
    kinds: dict[str, list[Moment]] = {}
    for moment in moments:
        if moment.part != "end":
            kind = re.sub("with .* new bytes of", "in the write of", moment.where)
            kinds.setdefault(re.sub(r"\d+", "#", kind), []).append(moment)
    drawn = [draw.choice(of_kind) for of_kind in kinds.values()]
    draw.shuffle(drawn)
    return sorted(drawn, key=lambda moment: moment.part == "before")[:MOMENTS]

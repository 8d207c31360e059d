"""Chains of world sizes within an epoch: 2 ranks, then 3, then 1, then 4, killed in between.

Each link is killed after a random step that has no save of its own, so the next link finds
ledger lines that are newer than the checkpoint that it goes on from.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from functools import partial
from typing import Any

from rehearsal.faults.breaks import signal_itself
from rehearsal.faults.forked import SMALL, Hang, Job, new_folder, reference, same_weights
from rehearsal.faults.matrix import Bench, Try, leave

FAULT = "chain of world sizes"


def draw_plan(rng: random.Random) -> dict[str, Any]:
    """Settings with a pinned global batch that the world sizes do not divide."""
    batch = rng.randrange(7, 24)
    return {
        **SMALL,
        # 14 to 20 steps an epoch, the last of them smaller.
        "dataset_size": batch * rng.randrange(14, 20) + rng.randrange(1, batch),
        "pinned_global_batch_size": batch,
        # One rank accumulates over two to six micro-batches, four ranks over one or two.
        "micro_batch_size": rng.randrange(-(-batch // 6), -(-batch // 2) + 1),
        "grad_accum_steps": 1,
        "max_epochs": rng.choice((1, 1, 2)),
        # The noise on a sample does not depend on who trains it; dropout is each rank's own.
        "dropout": 0.0,
        "input_noise": 0.1,
        "checkpoint_every_steps": rng.randrange(2, 5),
    }


def draw_kills(rng: random.Random, plan: dict[str, Any], links: int) -> list[int]:
    """Steps of one epoch, rising, none of them a save's."""
    per_epoch = -(-plan["dataset_size"] // plan["pinned_global_batch_size"])
    first = per_epoch * rng.randrange(plan["max_epochs"])
    steps = [s for s in range(1, per_epoch) if (first + s) % plan["checkpoint_every_steps"]]
    return [first + step for step in sorted(rng.sample(steps, links))]


def chains(bench: Bench) -> Iterable[Try]:
    """Run the chains; every one ends with a link that nothing kills."""
    rng = bench.rng("chains")
    plans = [draw_plan(rng) for _ in range(3 if bench.quick else 12)]
    for number in range(4 if bench.quick else 64):
        plan = plans[number % len(plans)]
        sizes = rng.sample((1, 2, 3, 4), 4) if number else [2, 3, 1, 4]
        sizes = sizes[: rng.choice((3, 4))]
        own = {"num_workers": rng.choice((0, 0, 1)), "async_checkpoint": rng.random() < 0.5}
        yield chain(bench, rng, plan, own, sizes)


def chain(
    bench: Bench,
    rng: random.Random,
    plan: dict[str, Any],
    own: dict[str, Any],
    sizes: list[int],
) -> Try:
    """One chain: each link but the last is killed."""
    kills = draw_kills(rng, plan, len(sizes) - 1)
    folder = new_folder(bench, "chain")
    told, problem = [], ""
    for size, kill in zip(sizes, [*kills, None], strict=True):
        victim, when = (
            rng.randrange(size),
            rng.choice(("before the ledger", "after the ledger")),
        )
        prepare = partial(signal_itself, signal.SIGKILL, victim, kill or 0, when)
        told.append(
            f"{size} ranks" + (f", rank {victim} killed {when} of {kill}" if kill else "")
        )
        with Job(folder, size, {**plan, **own}, prepare if kill else None) as job:
            try:
                codes = job.wait()
            except Hang as hang:
                problem = str(hang)
                break
        if kill is None and any(codes):
            problem = f"the last link ended with {codes}: {job.said()[-2000:]}"
        elif kill is not None and (codes[victim] != -signal.SIGKILL or 0 in codes):
            problem = f"the link of {size} ended with {codes}: {job.said()[-2000:]}"
            break
    straight = reference(bench, 1, plan)
    equal = same_weights(job.run_dir, straight, exactly=False)
    result = bench.judge(FAULT, "; ".join(told), job.run_dir, equal=equal, problem=problem)
    return leave(folder, result)

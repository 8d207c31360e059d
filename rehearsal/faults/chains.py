"""Chains of world sizes within one epoch: 2 ranks, then 3, then 1, then 4, each start killed.

Every start but the last is killed after a random step that no save follows, so the next start
finds ledger lines newer than the checkpoint it resumes from.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from functools import partial
from typing import Any

from rehearsal.faults.breaks import When, kill
from rehearsal.faults.jobs import ONE_EPOCH, Hang, codes_of, problem_of, start
from rehearsal.faults.matrix import HARDENED, Bench, Trainer, Try, leave, same_weights

FAULT = "chain of world sizes"
WHEN: tuple[When, ...] = ("before the ledger", "after the ledger")


def draw_plan(rng: random.Random) -> dict[str, Any]:
    """Settings with a pinned global batch that the world sizes do not divide."""
    batch = rng.randrange(7, 24)
    return {
        **ONE_EPOCH,
        # 15 to 20 steps an epoch, the last of them smaller.
        "dataset_size": batch * rng.randrange(14, 20) + rng.randrange(1, batch),
        "pinned_global_batch_size": batch,
        # One rank accumulates over two to six micro-batches, four ranks over one or two.
        "micro_batch_size": rng.randrange(-(-batch // 6), -(-batch // 2) + 1),
        "grad_accum_steps": 1,
        "max_epochs": rng.choice((1, 1, 2)),
        # A sample's noise does not depend on which rank trains it; dropout does.
        "dropout": 0.0,
        "input_noise": 0.1,
        "checkpoint_every_steps": rng.randrange(2, 5),
    }


def draw_kills(rng: random.Random, plan: dict[str, Any], starts: int) -> list[int]:
    """Rising steps of one epoch, none of which is saved."""
    batch = plan.get("global_batch_size") or plan["pinned_global_batch_size"]
    per_epoch = -(-plan["dataset_size"] // batch)
    first = per_epoch * rng.randrange(plan["max_epochs"])
    steps = [s for s in range(1, per_epoch) if (first + s) % plan["checkpoint_every_steps"]]
    return [first + step for step in sorted(rng.sample(steps, starts))]


def chains(bench: Bench) -> Iterable[Try]:
    """The group: chains of three or four starts."""
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
    trainer: Trainer = HARDENED,
    fault: str = FAULT,
) -> Try:
    """One chain: every start but the last is killed.

    Args:
        own: settings of the chain that do not change the weights.
    """
    kills = draw_kills(rng, plan, len(sizes) - 1)
    folder = bench.folder("chain")
    cfg, run_dir = trainer.small(folder / "run", **plan, **own), folder / "run"
    starts, problem = [], ""
    for size, step in zip(sizes, [*kills, None], strict=True):
        victim, when = rng.randrange(size), rng.choice(WHEN)
        starts.append(
            f"{size} ranks" + (f", rank {victim} killed {when} of {step}" if step else "")
        )
        prepare = partial(kill, victim, step, when) if step else None
        try:
            reports = start(cfg, size, prepare, output=folder)
        except Hang as hang:
            problem = str(hang)
            break
        codes = codes_of(reports)
        if step is None:
            problem = problem_of(reports)
        elif codes[victim] != -signal.SIGKILL or 0 in codes:
            problem = f"the start with {size} ranks ended with {codes}"
            break
    straight = bench.reference(trainer.small(folder, **plan), 1)
    equal = same_weights(run_dir, straight, exactly=False)
    result = bench.judge(fault, "; ".join(starts), run_dir, equal=equal, problem=problem)
    return leave(folder, result)

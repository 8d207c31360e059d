"""One rank of an incident's job: deploy the code, build the world around it, train.

Everything that takes time here sleeps (``passing_time.py``), so two busy cores show the same
picture as two idle ones. What goes wrong goes wrong in the trainer's own functions, and the
trainer's own log, ledger and traces show it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rehearsal.faults.breaks import at_step, wrap
from rehearsal.incidents.agent import anonymous_mib, follow_the_loop, memory, position, watch
from rehearsal.incidents.passing_time import (
    pass_time_in_compute,
    pass_time_in_reads,
    pass_time_in_sync,
    pass_time_in_writes,
)
from rehearsal.incidents.world import Plan

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext


def train(
    context: RankContext, plan: Plan, attempt: int, run_dir: str, code: str | None
) -> Any:
    """Called in each rank of each attempt; returns what ``trainer_core.launch.run`` returns."""
    if code is not None:
        use_code_in(code)
    from trainer_core.config import TrainConfig
    from trainer_core.launch import run

    enter(plan, context.rank, attempt, Path(run_dir))
    names = [spec for spec in TrainConfig.__dataclass_fields__ if spec in plan.settings]
    chosen = {name: plan.settings[name] for name in names}
    cfg = TrainConfig(**{**plan.fixed, **chosen, "run_dir": Path(run_dir)})
    return run(cfg)


def use_code_in(folder: str) -> None:
    """Import trainer_core from ``folder`` from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer_core"]:
        del sys.modules[name]
    sys.path.insert(0, folder)


held: list[Any] = []  # memory that stays allocated until this process ends


def enter(plan: Plan, rank: int, attempt: int, run_dir: Path) -> None:
    """Wrap the trainer's functions, so that they meet the plan's world."""
    host, world = plan.host_of(rank), plan.world
    pass_time_in_compute(world.compute_ms / 1e3, host, world.mib_per_sample)
    pass_time_in_reads(world.read_ms / 1e3, host)
    follow_the_loop()
    pass_time_in_sync(plan.sync_ms / 1e3, host)
    pass_time_in_writes(plan.storage, plan.settings["retry_backoff_s"])
    if host.clock_skew_s:
        clock = time.time
        time.time = lambda: clock() + host.clock_skew_s
    if host.ballast_mib:
        held.append(bytearray(os.urandom(2**20) * host.ballast_mib))
    memory.limit_mib, memory.at_start_mib = host.memory_limit_mib, anonymous_mib()
    watch(rank, attempt, run_dir, host)
    change_samples(plan)
    for kill in world.kills:
        if (kill.attempt, kill.rank) == (attempt, rank):
            at_step(kill.step, lambda: os.kill(os.getpid(), signal.SIGKILL), "after the ledger")


def change_samples(plan: Plan) -> None:
    """Put a NaN into a sample, or wrong labels into one step."""
    poisoned, loud = plan.world.poisoned_sample, plan.world.loud_step
    if poisoned in plan.settings["restored_samples"]:
        poisoned = None

    def poisoning(batch: Any, source: Any, samples: Any) -> Any:
        inputs, targets = batch(source, samples)
        inputs[torch.as_tensor(samples) == poisoned] = float("nan")
        return inputs, targets

    def relabeling(train_step: Any, trainer: Any, batches: Any, *rest: Any) -> Any:
        if position.next_step == loud:
            batches = [batch._replace(targets=(batch.targets + 3) % 8) for batch in batches]
        return train_step(trainer, batches, *rest)

    if poisoned is not None:
        wrap("ToyClassificationDataset.batch", poisoning)
    if loud is not None:
        wrap("train_step", relabeling)

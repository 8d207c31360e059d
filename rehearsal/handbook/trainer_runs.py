"""Run the project's own trainer on ranks, as torchrun would, for its logs and traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.handbook.on_ranks import RankFailed

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch

# 20 steps of 64 samples on two ranks, saved after 10 and 20.
PLAN: dict[str, Any] = {
    "dataset_size": 640,
    "max_epochs": 2,
    "micro_batch_size": 32,
    "hidden_dim": 256,
    "checkpoint_every_steps": 10,
    "log_every": 20,
    "device": "cpu",
}


def train_here(
    _: RankContext, settings: dict[str, Any], prepare: Callable[[], object] | None
) -> Any:
    """In a rank: apply the fault, then train to the end of the plan."""
    from trainer_core.config import TrainConfig
    from trainer_core.launch import run

    if prepare is not None:
        prepare()
    return run(TrainConfig(**settings))


def train_on_ranks(
    run_dir: Path,
    world_size: int = 2,
    prepare: Callable[[], object] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train ``trainer_core`` into ``run_dir``; returns rank 0's summary.

    Args:
        prepare: called in each rank first; ``rehearsal.faults.breaks`` has what it needs.
        settings: of the config; ``PLAN`` has the defaults.

    Raises:
        RankFailed: if a rank didn't reach the end of the plan.
        ValueError: if the world size is out of bounds.
    """
    reports = run_ranks(
        f"{__name__}:{train_here.__name__}",
        {**PLAN, "run_dir": run_dir, **settings},
        prepare,
        world_size=world_size,
        deadline_s=120.0,
    )
    for report in reports:
        if report.exitcode != 0:
            why = report.failure.traceback if report.failure else report.output + report.stacks
            end = "failed" if report.exitcode else "didn't end in time"
            raise RankFailed(f"[rank {report.rank}/{world_size}] the trainer {end}:\n{why}")
    summary: dict[str, Any] = reports[0].answer
    return summary

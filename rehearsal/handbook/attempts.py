"""One attempt of this project's trainer after another, in one run folder, with any ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.faults import breaks
from rehearsal.faults.jobs import small

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch
    from trainer_core.config import TrainConfig

Kill = tuple[int, int]  # a rank, and the step after which it gets SIGKILL


def attempt_in_rank(
    context: RankContext, cfg: TrainConfig, kill: Kill | None
) -> dict[str, Any]:
    """In a rank: train as torchrun would have it, and die on the way if it's its turn."""
    from trainer_core.launch import run

    if kill is not None:
        breaks.kill(*kill)
    return run(cfg)


def attempt(
    run_dir: Path, world_size: int, *, kill: Kill | None = None, **settings: Any
) -> list[RankReport]:
    """Start the small run, or resume it if the folder has one; how each rank ended.

    Args:
        kill: a rank and a step; that rank is killed right after that step.
        settings: of ``TrainConfig``, besides those of ``rehearsal.faults.jobs.SMALL``.

    Raises:
        UserError: if a setting is out of bounds.
    """
    target = f"{__name__}:{attempt_in_rank.__name__}"
    cfg = small(run_dir, **{"trace_steps": 0, **settings})
    return run_ranks(target, cfg, kill, world_size=world_size, deadline_s=60.0)

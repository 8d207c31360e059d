"""This project's trainer on real ranks, from a notebook: healthy, or broken on purpose.

    train(folder / "healthy")
    train(folder / "killed", fault=partial(breaks.kill, rank=1, step=14))

A run is small: two epochs of 203 samples, 26 steps of 16 on two ranks. What can break it is in
``rehearsal.faults.breaks``, and any function without arguments will do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.faults.jobs import small

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch
    from trainer_core.config import TrainConfig
    from trainer_core.metrics import Sink

Fault = Callable[[], object]
MakeSink = Callable[[Path, int], "Sink"]  # given the run folder and the rank


def train_in_rank(
    context: RankContext, cfg: TrainConfig, fault: Fault | None, make_sink: MakeSink | None
) -> dict[str, Any]:
    """In a rank: break what is to be broken, then train."""
    from trainer_core.launch import run

    if fault is not None:
        fault()
    sinks = [make_sink(cfg.run_dir, context.rank)] if make_sink else []
    return run(cfg, sinks=sinks)


def train(
    run_dir: Path,
    world_size: int = 2,
    *,
    fault: Fault | None = None,
    sink: MakeSink | None = None,
    deadline_s: float = 60.0,
    **settings: Any,
) -> list[RankReport]:
    """Start the trainer once in a run folder; how each rank ended, in rank order.

    Args:
        run_dir: if it has a run, that run resumes.
        fault: called in each rank before it trains. It may be defined in a notebook.
        sink: makes one more destination for a rank's events.
        settings: of ``TrainConfig``, other than those of the small run.

    Raises:
        ValueError: if a setting or the world size is out of bounds.
    """
    cfg = small(run_dir, **{"checkpoint_every_steps": 10, **settings})
    target = f"{__name__}:{train_in_rank.__name__}"
    return run_ranks(target, cfg, fault, sink, world_size=world_size, deadline_s=deadline_s)

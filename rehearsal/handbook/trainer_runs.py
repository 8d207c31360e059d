"""Run this project's trainer on real ranks, healthy or broken on purpose, into a run folder.

    run_trainer(folder / "killed", fault=partial(breaks.kill, rank=1, step=14))
    run_trainer(folder / "killed")                            resumes it
    train_to_end(folder / "healthy", **TWENTY_STEPS)          raises if a rank fails

A run is small: two epochs of 203 samples, 26 steps of 16 on two ranks, saved after 10 and 20
and each epoch. What can break it is in ``rehearsal.faults.breaks``, and any function without
arguments will do. ``rehearsal.faults.jobs`` starts the trainer's script instead, for tests of
the script; here the ranks come from the server that a chapter has warm for ``on_ranks``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.faults.breaks import Act
from rehearsal.faults.jobs import small
from rehearsal.handbook.on_ranks import answers_of

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch
    from trainer_core.config import TrainConfig
    from trainer_core.metrics import Sink

MakeSink = Callable[[Path, int], "Sink"]  # given the run folder and the rank

# 20 steps of 64 samples on two ranks, saved after 10 and 20, with more compute in each: for
# chapters that look at a step's times.
TWENTY_STEPS: dict[str, Any] = {
    "dataset_size": 640,
    "input_dim": 32,
    "hidden_dim": 256,
    "micro_batch_size": 32,
    "grad_accum_steps": 1,
    "log_every": 20,
}


def run_in_rank(
    context: RankContext, cfg: TrainConfig, fault: Act | None, make_sink: MakeSink | None
) -> dict[str, Any]:
    """In a rank: break what is to be broken, then train as torchrun would have it."""
    from trainer_core.launch import run

    if fault is not None:
        fault()
    sinks = [make_sink(cfg.run_dir, context.rank)] if make_sink else []
    return run(cfg, sinks=sinks)


def run_trainer(
    run_dir: Path,
    world_size: int = 2,
    fault: Act | None = None,
    *,
    sink: MakeSink | None = None,
    deadline_s: float = 60.0,
    **settings: Any,
) -> list[RankReport]:
    """Start the trainer once in a run folder; how each rank ended, in rank order.

    Args:
        run_dir: if it has a run, that run resumes.
        world_size: at most 8.
        fault: called in each rank before it trains. It may be defined in a notebook.
        sink: makes one more destination for a rank's events.
        deadline_s: the ranks are stopped after that many seconds.
        settings: of ``TrainConfig``, other than those of the small run.

    Raises:
        ValueError: if a setting or the world size is out of bounds.
    """
    cfg = small(run_dir, **{"checkpoint_every_steps": 10, **settings})
    target = f"{__name__}:{run_in_rank.__name__}"
    return run_ranks(target, cfg, fault, sink, world_size=world_size, deadline_s=deadline_s)


def train_to_end(
    run_dir: Path,
    world_size: int = 2,
    fault: Act | None = None,
    *,
    deadline_s: float = 120.0,
    **settings: Any,
) -> dict[str, Any]:
    """Run the trainer to the end of its plan; returns rank 0's summary. See ``run_trainer``.

    Raises:
        RankFailed: if a rank raised, died, or didn't get there before the deadline.
        ValueError: if a setting or the world size is out of bounds.
    """
    reports = run_trainer(run_dir, world_size, fault, deadline_s=deadline_s, **settings)
    summary: dict[str, Any] = answers_of(reports, "the trainer", deadline_s)[0]
    return summary

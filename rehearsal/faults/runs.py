"""Small runs of the real trainer on forked ranks, with something broken in them or not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rehearsal.evidence import RankReport
from rehearsal.faults.matrix import Bench
from rehearsal.rank import RankContext
from rehearsal.ranks import run_ranks
from trainer_core.config import TrainConfig

Prepare = Callable[[int], None]  # given the rank; breaks something in its process

# 11 samples divide by nothing, so each epoch of 3 steps ends with a smaller one. Saved are the
# steps 3, 4 and 6; each save but the first has an older checkpoint to delete.
SMALL: dict[str, Any] = {
    "dataset_size": 11,
    "input_dim": 2,
    "hidden_dim": 4,
    "num_layers": 1,
    "micro_batch_size": 2,
    "pinned_global_batch_size": 4,
    "max_epochs": 2,
    "dropout": 0.1,  # draws from the random streams, which are then seen to continue
    "checkpoint_every_steps": 4,
    "keep_last": 1,
    "log_every": 1,
    "device": "cpu",
    "dist_timeout_s": 60.0,
}
DEADLINE_S = 60.0


def small(run_dir: Path, **changes: Any) -> TrainConfig:
    """A run of a tenth of a second."""
    return TrainConfig(**{**SMALL, "run_dir": run_dir, **changes})


def train(context: RankContext, cfg: TrainConfig, prepare: Prepare | None) -> dict[str, Any]:
    """What each rank does."""
    import trainer_core.launch

    if prepare is not None:
        prepare(context.rank)
    return trainer_core.launch.run(cfg)


def start(
    cfg: TrainConfig, world_size: int, prepare: Prepare | None = None
) -> list[RankReport]:
    """Start the run as its user would, and say how each rank ended."""
    return run_ranks(train, cfg, prepare, world_size=world_size, deadline_s=DEADLINE_S)


def problem_of(reports: list[RankReport]) -> str:
    """Why a start did not come to its end; "" if it did."""
    for report in reports:
        if report.failure is not None:
            return f"rank {report.rank}: {report.failure.kind}: {report.failure.message}"
        if report.exitcode != 0:
            what = "did not end" if report.exitcode is None else f"code {report.exitcode}"
            return f"rank {report.rank}: {what}: {report.stacks or report.output[-500:]}"
    return ""


def weights_of(reports: list[RankReport]) -> set[str]:
    """The hashes of the last weights, over all ranks: one, if they agree."""
    return {report.answer["weights_sha256"] for report in reports if report.has_answer}


def undisturbed(bench: Bench, world_size: int, **changes: Any) -> set[str]:
    """The last weights of a run that nothing happens to."""
    key = world_size, *sorted(changes.items())
    if key not in bench.references:
        run_dir = bench.root / f"undisturbed-{len(bench.references)}"
        reports = start(small(run_dir, **changes), world_size)
        assert not problem_of(reports), problem_of(reports)
        bench.references[key] = weights_of(reports)
    weights: set[str] = bench.references[key]
    return weights


def die_after(step: int) -> Prepare:
    """Kill rank 0 when the optimizer has taken ``step``, before it is written down."""

    def prepare(rank: int) -> None:
        from trainer_core.data import ResumeAwareDistributedSampler as Sampler

        commit = Sampler.commit

        def commit_and_die(self: Sampler) -> None:
            commit(self)
            if rank == 0 and self.position == step:
                os.kill(os.getpid(), signal.SIGKILL)

        Sampler.commit = commit_and_die  # type: ignore[method-assign]

    return prepare

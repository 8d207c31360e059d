"""Jobs for real ranks, with a kill at an exact place; and how tests start them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.config import TrainConfig
from trainer_core.local_launcher import LocalRanks, RankResult

# 203 samples divide by nothing, so each epoch ends with a smaller step.
SMALL = {
    "dataset_size": 203,
    "input_dim": 8,
    "hidden_dim": 16,
    "micro_batch_size": 4,
    "grad_accum_steps": 2,
    "max_epochs": 2,
    "checkpoint_every_steps": 3,
    "log_every": 1,
    "device": "cpu",  # a machine with one GPU has a device for only one of two ranks
    "dist_timeout_s": 60.0,
}


def small(run_dir: Path, **changes: Any) -> TrainConfig:
    """A run of a second or so."""
    return TrainConfig(**{**SMALL, "run_dir": run_dir, **changes})


def die() -> None:
    """End this process as a power cut would: no handler, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def train(cfg: TrainConfig, prepare: Callable[[], None] | None = None) -> dict[str, Any]:
    """What each rank runs; ``prepare`` may break something in this process first."""
    import trainer_core.launch

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the rank lives
    if prepare is not None:
        prepare()
    return trainer_core.launch.run(cfg)


def this_rank() -> int:
    """The rank of the process that asks."""
    return int(os.environ["RANK"])


def kill_after_commit(rank: int, step: int, signal_: signal.Signals = signal.SIGKILL) -> None:
    """Die when the optimizer has taken ``step``, before the ledger and the checkpoint."""
    from trainer_core.data import ResumeAwareDistributedSampler as Sampler

    commit = Sampler.commit

    def commit_and_die(self: Sampler) -> None:
        commit(self)
        if this_rank() == rank and self.position == step:
            os.kill(os.getpid(), signal_)

    Sampler.commit = commit_and_die  # type: ignore[method-assign]


def kill_after_save(rank: int, step: int) -> None:
    """Die when the save of ``step`` has returned; if it is async, it may be in flight."""
    import trainer_core.launch as launch

    save = launch.save

    def save_and_die(job: Any) -> None:
        save(job)
        if this_rank() == rank and job.parts["sampler"].position == step:
            die()

    launch.save = save_and_die


def break_the_loader(rank: int, at_call: int) -> None:
    """Make one rank's dataset raise on one of its reads."""
    from trainer_core.datasets import ToyClassificationDataset

    batch, calls = ToyClassificationDataset.batch, []

    def breaking(self: Any, indices: Any) -> Any:
        calls.append(1)
        if this_rank() == rank and len(calls) == at_call:
            raise RuntimeError("bad sector")
        return batch(self, indices)

    ToyClassificationDataset.batch = breaking


def break_the_save(at_step: int) -> None:
    """Make the write of one checkpoint fail, as a full disk does."""
    import trainer_core.checkpoint_writer as writer

    original = writer.publish

    def failing(temporary: Path, target: Path, facts: Any) -> None:
        if facts["step"] == at_step:
            raise OSError(28, "No space left on device", str(target))
        original(temporary, target, facts)

    writer.publish = failing


def poison(rank: int, at_step: int) -> None:
    """Put a NaN into one rank's inputs of one step."""
    import trainer_core.launch as launch

    original, steps = launch.next_step, []

    def poisoned(*arguments: Any) -> Any:
        batches, error = original(*arguments)
        steps.append(1)
        if this_rank() == rank and len(steps) == at_step:
            batches[0].inputs[0, 0] = float("nan")
        return batches, error

    launch.next_step = poisoned


def change_samples(rank: int, from_step: int) -> None:
    """Add a little to one sample of each of one rank's steps, from a step on."""
    import trainer_core.launch as launch

    original, steps = launch.next_step, []

    def changed(*arguments: Any) -> Any:
        batches, error = original(*arguments)
        steps.append(1)
        if this_rank() == rank and len(steps) >= from_step:
            batches[0].inputs[0] += 0.5
        return batches, error

    launch.next_step = changed


def give_other_data(rank: int) -> None:
    """Let one rank read another content under the same name."""
    import trainer_core.launch as launch

    original = launch.build_dataset

    def other(cfg: TrainConfig) -> Any:
        source = original(cfg)
        source.fingerprint += "other" if this_rank() == rank else ""
        return source

    launch.build_dataset = other


def slow_down_saves(seconds: float) -> None:
    """Make each publication take a while, so that something can happen beside it."""
    import trainer_core.checkpoint_writer as writer

    original = writer.publish

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        original(*arguments)

    writer.publish = slow


def slow_down_steps() -> None:
    """Make each step take a while, so that something can happen beside the training."""
    import trainer_core.launch as launch

    original = launch.next_step

    def slow(*arguments: Any) -> Any:
        time.sleep(0.2)
        return original(*arguments)

    launch.next_step = slow


def both(*preparations: Callable[[], None]) -> None:
    """Several things at once."""
    for prepare in preparations:
        prepare()


def hide_checkpoints(rank: int) -> None:
    """Show ``rank`` an empty folder."""
    import trainer_core.run_folder as run_folder

    if this_rank() == rank:
        run_folder.published_steps = lambda _: {}  # type: ignore[assignment]


def run_ranks(
    cfg: TrainConfig,
    world_size: int,
    prepare: Callable[[], None] | None = None,
    timeout_s: float = 60.0,
) -> list[RankResult]:
    """Train on ``world_size`` ranks and say how each ended."""
    return LocalRanks(partial(train, cfg, prepare), world_size).wait(timeout_s)


def finish(cfg: TrainConfig, world_size: int) -> dict[str, Any]:
    """Train to the end on all ranks, which must agree on the weights; rank 0's summary."""
    results = run_ranks(cfg, world_size)
    assert [result.exitcode for result in results] == [0] * world_size, results[0].traceback
    assert len({result.value["weights_sha256"] for result in results}) == 1
    summary: dict[str, Any] = results[0].value
    return summary

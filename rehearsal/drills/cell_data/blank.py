# Derived by scripts/sync_notebooks.py; edit trainer_core/data.py.
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from trainer_core.config import TrainConfig
from trainer_core.order import EpochOrder


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """Which part of which epoch's order each optimizer step trains on.

    The world size plays no part in it, so it may change between two steps without repeating or
    skipping a sample.

    Args:
        num_samples: n, samples in one epoch.
        global_batch_size: G, equal on all ranks and over the whole run.
        max_epochs: epochs in the plan.
    """

    num_samples: int
    global_batch_size: int
    max_epochs: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that train on each sample once; the last may be smaller than G."""
        raise NotImplementedError

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        raise NotImplementedError

    def slots(self, position: int) -> tuple[int, int, int]:
        """Epoch, first slot and one past the last slot of the step at ``position``."""
        raise NotImplementedError

    def size(self, position: int) -> int:
        """Samples in the step at ``position``: G, or fewer in the last step of an epoch."""
        raise NotImplementedError


class SampleKey(NamedTuple):
    """One visit to a sample; it includes the epoch because augmentation depends on it."""

    epoch: int
    sample: int


class ResumeAwareDistributedSampler(Sampler[list[SampleKey]]):
    """Deal each step's samples to the ranks, starting at the committed position.

    Only ``commit`` moves the position, and the training loop calls it after the optimizer has
    stepped. Iterating doesn't move it, because loader workers run ahead of the training.

    Args:
        schedule: equal on all ranks.
        cfg: its seed decides the order, its micro_batch_size how a step is split.
        rank: this rank, in 0..world_size-1.

    Yields:
        ``micro_steps`` micro-batches per step; some are empty if a step has fewer samples.
    """

    def __init__(
        self, schedule: StepSchedule, cfg: TrainConfig, rank: int, world_size: int
    ) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[SampleKey]]:
        raise NotImplementedError

    def __len__(self) -> int:
        """Micro-batches that remain, so a progress bar is right after a resume."""
        raise NotImplementedError

    def micro_batches(self, position: int) -> list[list[SampleKey]]:
        """This rank's samples of the step at ``position``, split into micro-batches."""
        raise NotImplementedError

    def commit(self) -> None:
        """Count one optimizer step. Call it after the optimizer has stepped, on every rank."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        """The position: all a resume needs besides the identity of the run."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["position"]`` completed steps."""
        raise NotImplementedError

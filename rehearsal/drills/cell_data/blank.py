from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data import Sampler

from trainer_core.config import TrainConfig
from trainer_core.order import EpochOrder


@dataclass(frozen=True, slots=True)
class StepSchedule:
    """Cut each epoch into global batches first, and only then among the ranks.

    Because the batch exists before the ranks do, the world size may change between two steps
    without repeating or skipping a sample.

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
        """Optimizer steps that train each sample once; the last may be smaller than G."""
        raise NotImplementedError

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole plan."""
        raise NotImplementedError

    def slots(self, position: int) -> tuple[int, int, int]:
        """Epoch, first slot and one past the last slot of the step at ``position``."""
        raise NotImplementedError

    def size(self, position: int) -> int:
        """Samples in the step at ``position``; the first step of an epoch has the most."""
        raise NotImplementedError


class SampleKey(NamedTuple):
    """One visit to a sample: the epoch is part of it because augmentation depends on it."""

    epoch: int
    sample: int


class ResumeAwareDistributedSampler(Sampler[list[SampleKey]]):
    """Deal each step's samples to the ranks, from the committed position on.

    The position moves in ``commit`` only, which the training loop calls when the optimizer has
    stepped. Iterating, which loader workers do ahead of the training, leaves it alone.

    Args:
        schedule: equal on all ranks.
        cfg: its seed decides the order, its micro_batch_size the cut.
        rank: this rank, in 0..world_size-1.

    Yields:
        ``micro_steps`` micro-batches per step; some are empty where a step has fewer samples.
    """

    def __init__(
        self, schedule: StepSchedule, cfg: TrainConfig, rank: int, world_size: int
    ) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[SampleKey]]:
        raise NotImplementedError

    def __len__(self) -> int:
        """Micro-batches that are left, so that a progress bar is right after a resume."""
        raise NotImplementedError

    def micro_batches(self, position: int) -> list[list[SampleKey]]:
        """This rank's samples of the step at ``position``, cut into micro-batches."""
        raise NotImplementedError

    def commit(self) -> None:
        """Count one optimizer step. Call it when the optimizer has stepped, on every rank."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        """The position: all that a resume needs besides the identity of the run."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["position"]`` completed steps."""
        raise NotImplementedError

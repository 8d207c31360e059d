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
        return -(-self.num_samples // self.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole plan."""
        return self.steps_per_epoch * self.max_epochs

    def slots(self, position: int) -> tuple[int, int, int]:
        """Epoch, first slot and one past the last slot of the step at ``position``."""
        epoch, step = divmod(position, self.steps_per_epoch)
        first = step * self.global_batch_size
        return epoch, first, min(first + self.global_batch_size, self.num_samples)

    def size(self, position: int) -> int:
        """Samples in the step at ``position``; the first step of an epoch has the most."""
        _, first, last = self.slots(position)
        return last - first


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

    BLOCK = 65536

    def __init__(
        self, schedule: StepSchedule, cfg: TrainConfig, rank: int, world_size: int
    ) -> None:
        self.schedule, self.seed = schedule, cfg.seed
        self.micro_batch_size = cfg.micro_batch_size
        self.rank, self.world_size = rank, world_size
        self.position = 0
        most = -(-schedule.global_batch_size // world_size)
        self.micro_steps = -(-most // cfg.micro_batch_size)
        self._block_of = (-1, -1)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for position in range(self.position, self.schedule.total_steps):
            yield from self.micro_batches(position)

    def __len__(self) -> int:
        """Micro-batches that are left, so that a progress bar is right after a resume."""
        return (self.schedule.total_steps - self.position) * self.micro_steps

    def micro_batches(self, position: int) -> list[list[SampleKey]]:
        """This rank's samples of the step at ``position``, cut into micro-batches."""
        epoch, first, last = self.schedule.slots(position)
        # Strided, not blocked: the ranks' shares stay within one sample of each other for every
        # world size, so no rank waits for more than one sample.
        mine = self._samples(epoch, first, last)[self.rank :: self.world_size].tolist()
        keys = [SampleKey(epoch, sample) for sample in mine]
        size = self.micro_batch_size
        full = [keys[start : start + size] for start in range(0, len(keys), size)]
        # The empty ones first: the last micro-batch is always computed, since its backward
        # pass synchronizes; an empty one would be a pass for nothing.
        return [[] for _ in range(self.micro_steps - len(full))] + full

    def _samples(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        # Computed in blocks: per index that is a hundred times cheaper than step by step.
        start = first - first % self.BLOCK
        if self._block_of != (epoch, start):
            stop = start + self.BLOCK + self.schedule.global_batch_size
            order = EpochOrder(self.schedule.num_samples, seed=self.seed, epoch=epoch)
            self._block = order.samples(start, min(stop, self.schedule.num_samples))
            self._block_of = (epoch, start)
        return self._block[first - start : last - start]

    def commit(self) -> None:
        """Count one optimizer step. Call it when the optimizer has stepped, on every rank."""
        self.position += 1

    def state_dict(self) -> dict[str, int]:
        """The position: all that a resume needs besides the identity of the run."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["position"]`` completed steps."""
        self.position = state["position"]

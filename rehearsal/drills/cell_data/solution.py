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
        return -(-self.num_samples // self.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps_per_epoch * self.max_epochs

    def slots(self, position: int) -> tuple[int, int, int]:
        """Epoch, first slot and one past the last slot of the step at ``position``."""
        # The epoch is cut into global batches here; the ranks share out each batch later.
        epoch, step = divmod(position, self.steps_per_epoch)
        first = step * self.global_batch_size
        return epoch, first, min(first + self.global_batch_size, self.num_samples)

    def size(self, position: int) -> int:
        """Samples in the step at ``position``: G, or fewer in the last step of an epoch."""
        _, first, last = self.slots(position)
        return last - first


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

    BLOCK = 65536

    def __init__(
        self, schedule: StepSchedule, cfg: TrainConfig, rank: int, world_size: int
    ) -> None:
        self.schedule = schedule
        self.seed = cfg.seed
        self.micro_batch_size = cfg.micro_batch_size
        self.rank = rank
        self.world_size = world_size
        self.position = 0
        largest_share = -(-schedule.size(0) // world_size)
        self.micro_steps = -(-largest_share // cfg.micro_batch_size)
        self._block_of = (-1, -1)  # epoch and first slot of the block in memory

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for position in range(self.position, self.schedule.total_steps):
            yield from self.micro_batches(position)

    def __len__(self) -> int:
        """Micro-batches that remain, so a progress bar is right after a resume."""
        return (self.schedule.total_steps - self.position) * self.micro_steps

    def micro_batches(self, position: int) -> list[list[SampleKey]]:
        """This rank's samples of the step at ``position``, split into micro-batches."""
        epoch, first, last = self.schedule.slots(position)
        # Strided, not blocked: at every world size the ranks' shares differ by at most one
        # sample, so no rank waits for more than one.
        mine = self._samples(epoch, first, last)[self.rank :: self.world_size].tolist()
        keys = [SampleKey(epoch, sample) for sample in mine]
        size = self.micro_batch_size
        full = [keys[start : start + size] for start in range(0, len(keys), size)]
        # Empty ones come first. The last micro-batch is always computed because its backward
        # pass syncs, so it should have samples if any micro-batch does.
        return [[] for _ in range(self.micro_steps - len(full))] + full

    def _samples(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        # In blocks: at G = 32, more than ten times cheaper per sample than one step at a time.
        start = first - first % self.BLOCK
        if self._block_of != (epoch, start):
            stop = start + self.BLOCK + self.schedule.global_batch_size
            order = EpochOrder(self.schedule.num_samples, seed=self.seed, epoch=epoch)
            self._block = order.samples(start, min(stop, self.schedule.num_samples))
            self._block_of = (epoch, start)
        return self._block[first - start : last - start]

    def commit(self) -> None:
        """Count one optimizer step. Call it after the optimizer has stepped, on every rank."""
        self.position += 1

    def state_dict(self) -> dict[str, int]:
        """The position: all a resume needs besides the identity of the run."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["position"]`` completed steps."""
        self.position = state["position"]

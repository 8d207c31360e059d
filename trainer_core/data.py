"""Which samples a rank trains in a step, for any world size, from one integer.

Cell 2. The question it answers: "the job restarts on three machines instead of two; which
sample comes next?"

    n  samples in the dataset        G  global batch, samples per optimizer step
    W  world size                    B  samples in a micro-batch
    D  features    T  tokens         position  completed optimizer steps since the start
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.datasets import (
    InMemoryDataset,
    SampleSource,
    TokenDataset,
    already_batched,
    load_digits_dataset,
)
from trainer_core.order import EpochOrder
from trainer_core.settings import UserError
from trainer_core.signals import exit_with_parent


# %%
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


# %%
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


# %%
class ToyClassificationDataset(InMemoryDataset):
    """Points from a normal distribution, labelled by a fixed random linear map.

    A network can learn the labels, so a loss curve says something. The content does not depend
    on the run's seed: two seeds train the same data in different orders.
    """

    def __init__(self, num_samples: int, input_dim: int, num_classes: int = 8) -> None:
        if num_samples * input_dim > 2**31:
            raise UserError(
                f"--dataset-size {num_samples} --input-dim {input_dim}: toy data is held in "
                "memory, 2**31 numbers (8 GiB) at most. Lower one, or use tokens:PATH."
            )
        generator = torch.Generator().manual_seed(1234)
        teacher = torch.randn(input_dim, num_classes, generator=generator)
        inputs = torch.randn(num_samples, input_dim, generator=generator)
        super().__init__(inputs, (inputs @ teacher).argmax(dim=1), num_classes)


# %%
def build_dataset(cfg: TrainConfig) -> SampleSource:
    """The dataset that the configuration names.

    Raises:
        UserError: if its file or package is missing, or it does not fit in memory.
    """
    if cfg.data_kind == "tokens":
        return TokenDataset(Path(cfg.data.removeprefix("tokens:")), cfg.seq_len, cfg.vocab_size)
    if cfg.data_kind == "digits":
        return load_digits_dataset()
    return ToyClassificationDataset(cfg.dataset_size or 20_000, cfg.input_dim)


def plan_steps(cfg: TrainConfig, source: SampleSource) -> StepSchedule:
    """The steps of the run: ``dataset_size`` samples of ``source``, or all of them.

    Raises:
        UserError: if ``source`` has fewer samples than ``dataset_size``.
    """
    num_samples = cfg.dataset_size or len(source)
    if num_samples > len(source):
        raise UserError(
            f"--dataset-size {num_samples}: {cfg.data} has {len(source)} samples, and none is "
            f"trained twice in an epoch. Set --dataset-size to {len(source)} or less."
        )
    return StepSchedule(num_samples, cfg.global_batch_size, cfg.max_epochs)


# %%
class MicroBatch(NamedTuple):
    """Samples of one forward pass, with their ids: the ledger records what was trained."""

    samples: Tensor  # (B,) int64
    inputs: Tensor  # (B, D) float32, or (B, T) int64
    targets: Tensor  # (B,) or (B, T) int64


class TrainingView(Dataset[MicroBatch]):
    """A dataset as the loader sees it: by lists of keys, with augmentation.

    The noise on a sample is a function of (seed, epoch, index), so it depends neither on the
    worker nor on the rank that loads the sample.
    """

    def __init__(self, source: SampleSource, *, seed: int, input_noise: float) -> None:
        self.source, self.seed, self.input_noise = source, seed, input_noise

    def __getitems__(self, keys: Sequence[SampleKey]) -> MicroBatch:
        samples = torch.tensor([key.sample for key in keys], dtype=torch.int64)
        inputs, targets = self.source.batch(samples)
        if self.input_noise:
            for row, key in enumerate(keys):
                generator = np.random.default_rng((self.seed, *key))
                noise = generator.standard_normal(inputs.shape[1:])
                inputs[row] += self.input_noise * torch.from_numpy(noise)
        return MicroBatch(samples, inputs, targets)


def build_dataloader(
    view: TrainingView,
    sampler: ResumeAwareDistributedSampler,
    cfg: TrainConfig,
    device: torch.device,
) -> DataLoader[MicroBatch]:
    """A loader of this rank's micro-batches, from the sampler's position to the plan's end."""
    return DataLoader(
        view,
        batch_sampler=sampler,
        num_workers=cfg.num_workers,
        collate_fn=already_batched,
        pin_memory=device.type == "cuda",
        # A loader draws a seed for its workers. Drawn from the global generator, it would make
        # a resumed run's dropout differ from the uninterrupted run's.
        generator=torch.Generator(),
        # In a rank started from a notebook the default would be forkserver, which cannot
        # unpickle a dataset defined in the notebook.
        multiprocessing_context="fork" if cfg.num_workers and sys.platform == "linux" else None,
        worker_init_fn=exit_with_parent,
    )

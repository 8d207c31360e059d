"""What a kind of data brings to the trainer: its samples, its model and its loss.

The trainer keeps what it's good at: order, position, resume, ledger. A task answers what
differs between molecules, proteins, graphs and cells.

    N  loss terms: labels that are there, tokens that were masked
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.config import BioConfig
from trainer_core.data import MicroBatch, SampleKey, TrainingView


# %%
class Task(Protocol):
    """A dataset with a model and a loss of its own."""

    fingerprint: str  # of the data and of all that decides what a bin contains
    num_classes: int

    def __len__(self) -> int:
        """Bins: what the trainer orders."""

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Any, Tensor]:
        """Bins as epoch 0 visits them; the trainer's protocol of a source asks for it."""

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[TensorBatch, Tensor]:
        """Inputs and targets of some bins: a pure function of (seed, epoch, bin).

        Without keys, an empty batch.
        """

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        """N of these bins, in any epoch. Every rank asks for the whole step's, so it must be
        known without the data of other ranks.
        """

    def build_model(self, cfg: BioConfig) -> nn.Module:
        """Initialized from the global random state. Its output is one tensor."""

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over the terms that are there, in float32; shape ()."""


class VisitView(TrainingView):
    """A task as the loader reads it: what a bin contains may depend on the epoch."""

    def __init__(self, task: Task, *, seed: int) -> None:
        self.task = task
        super().__init__(task, seed=seed, input_noise=0.0)

    def __getitems__(self, keys: Sequence[SampleKey]) -> MicroBatch:
        inputs, targets = self.task.visit(keys, self.seed)
        bins = torch.tensor([key.sample for key in keys], dtype=torch.int64)
        return MicroBatch(bins, inputs, targets)  # type: ignore[arg-type]

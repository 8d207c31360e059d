# Derived by scripts/sync_notebooks.py; edit trainer_core/train.py.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.collectives import placeholder
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.metrics import StepTimers, phase
from trainer_core.rng import rng_unchanged

AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Trainer:
    """What a step works with, and the results that the host has not read yet."""

    cfg: TrainConfig
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    timers: StepTimers
    # Per step: S, and on the device this rank's summed loss, the gradient norm before clipping,
    # and 1.0 if the update was skipped.
    unread: list[tuple[int, Tensor, Tensor, Tensor]] = field(default_factory=list)


def train_step(
    trainer: Trainer, micro_batches: Sequence[MicroBatch], samples_in_step: int, lr: float
) -> Tensor:
    """One optimizer step on the mean loss over the step's S samples; no host-device sync.

    Collective: every rank, including one without samples.

    Args:
        micro_batches: this rank's share of the step; some or all may be empty.
        samples_in_step: S, equal on all ranks.

    Returns:
        1.0 if any rank's gradient was NaN or infinite, so no rank updated its weights; else
        0.0. Shape (), on the device, equal on all ranks.
    """
    raise NotImplementedError

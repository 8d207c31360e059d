from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.metrics import StepTimers, phase

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
    """One optimizer step over the samples of all ranks; nothing in it waits for the device.

    Collective: every rank, also one without samples.

    Args:
        micro_batches: this rank's samples; some, or all, of the micro-batches may be empty.
        samples_in_step: S, equal on all ranks.

    Returns:
        1.0 if the update was withheld because of a non-finite gradient, else 0.0; shape (), on
        the device, equal on all ranks.
    """
    raise NotImplementedError

import gc
import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer_core.config import TrainConfig
from trainer_core.rendezvous import attempt_store
from trainer_core.settings import UserError


class RankInfo(NamedTuple):
    """One process of the job: its global index, its index on the node, the group's size."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def maybe_init_dist(cfg: TrainConfig) -> RankInfo:
    """Read torchrun's environment, take the device, then join the process group.

    Collective: every rank of the job, first thing. A single process makes no group.

    Raises:
        UserError: if the device is not there, or ``cfg.world_size`` is not torchrun's.
    """
    raise NotImplementedError


def cleanup_dist() -> None:
    """Leave the process group. The caller must have dropped the DDP wrapper before.

    A wrapper that outlives the group keeps gloo's threads to the interpreter's end, where they
    abort the process after a good run (defect D27). It may sit in reference cycles, hence gc.
    """
    raise NotImplementedError


def wrap_model(model: nn.Module, info: RankInfo, no_inputs: Tensor) -> nn.Module:
    """DDP around ``model`` if there are peers, with its buckets in their final layout.

    DDP orders its gradient buckets anew after the first backward pass, and with three ranks or
    more another layout sums in another order: a resumed run would differ in the last bits from
    one that was never stopped (defect D28). One backward pass over a batch without samples,
    on every start, brings the final layout before the first step.

    Collective: every rank.

    Args:
        no_inputs: an empty batch, (0, D) or (0, T).
    """
    raise NotImplementedError


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP; checkpoints hold its names, without the ``module.`` prefix."""
    raise NotImplementedError

# Derived by scripts/sync_notebooks.py; edit trainer_core/distributed.py.
from __future__ import annotations

import gc
import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer_core.collectives import placeholder
from trainer_core.config import TrainConfig
from trainer_core.rendezvous import attempt_store
from trainer_core.rng import rng_unchanged
from trainer_core.settings import UserError


class RankInfo(NamedTuple):
    """One process of the job: its global rank, its rank on the node, the group's size."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def maybe_init_dist(cfg: TrainConfig) -> RankInfo:
    """Read torchrun's environment, select the device, then join the process group.

    Collective: every rank of the job, before anything else. A single process has no group.

    Raises:
        UserError: if there is no device for this rank, or ``cfg.world_size`` isn't torchrun's.
    """
    raise NotImplementedError


def cleanup_dist() -> None:
    """Leave the process group, without waiting for other ranks.

    The caller must have dropped the DDP wrapper. Nothing of it may outlive the group.
    """
    raise NotImplementedError


def wrap_model(model: nn.Module, info: RankInfo, no_inputs: Tensor) -> nn.Module:
    """Wrap ``model`` in DDP if there are peers.

    From the first step after any start, the ranks' gradients are added in the same order, so a
    resumed run can match the uninterrupted one bit for bit. The random states are unchanged,
    and no gradient is left over.

    Collective: every rank.

    Args:
        no_inputs: an empty batch, (0, D) or (0, T).
    """
    raise NotImplementedError


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP; checkpoints use its names, without the ``module.`` prefix."""
    raise NotImplementedError

# Derived by scripts/sync_notebooks.py; edit trainer_core/model.py.
from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainer_core.config import TrainConfig


class TinyNet(nn.Module):
    """A multilayer perceptron: (B, D) float inputs to (B, C) logits."""

    def __init__(
        self, input_dim: int, hidden_dim: int, num_classes: int, num_layers: int, dropout: float
    ) -> None:
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


def build_optimizer(cfg: TrainConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW that decays matrices only: decaying a bias regularizes nothing useful.

    The fused kernel reads ``found_inf``, a flag on the device that makes it skip the update. So
    the host doesn't have to wait for the gradients to know whether they are finite.
    """
    raise NotImplementedError


def learning_rate_at(cfg: TrainConfig, step: int) -> float:
    """Learning rate of ``step`` (from 1): linear warmup, then a cosine down to the floor.

    A function of the step has no state, so a resume can't make it jump. ``decay_steps`` is
    fixed at the first start, so adding epochs doesn't change the rate of steps already trained.

    Args:
        cfg: with ``decay_steps`` set.
    """
    raise NotImplementedError

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainer_core.config import TrainConfig


class TinyNet(nn.Module):
    """A perceptron: (B, D) float to (B, C) logits."""

    def __init__(
        self, input_dim: int, hidden_dim: int, num_classes: int, num_layers: int, dropout: float
    ) -> None:
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


def build_optimizer(cfg: TrainConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW that decays matrices only: a decayed bias or norm gain only loses scale.

    The fused kernel takes ``found_inf``, a flag on the device that withholds the update, so the
    host need not wait for the gradients to learn whether they were finite. It exists for CPU
    and CUDA.
    """
    raise NotImplementedError


def learning_rate_at(cfg: TrainConfig, step: int) -> float:
    """Learning rate of ``step`` (from 1): linear warm-up, then a cosine down to the floor.

    A function of the step has no state, so a resume cannot make it jump, and ``decay_steps`` is
    fixed at the first start, so more epochs later do not bend the past.

    Args:
        cfg: with ``decay_steps`` set.
    """
    raise NotImplementedError

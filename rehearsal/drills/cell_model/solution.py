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
        super().__init__()
        widths = [input_dim] + [hidden_dim] * num_layers
        layers: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.GELU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_dim, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits  # (B, C)


def build_optimizer(cfg: TrainConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW that decays matrices only: decaying a bias regularizes nothing useful.

    The fused kernel reads ``found_inf``, a flag on the device that makes it skip the update. So
    the host doesn't have to wait for the gradients to know whether they are finite.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": cfg.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, fused=True)


def learning_rate_at(cfg: TrainConfig, step: int) -> float:
    """Learning rate of ``step`` (from 1): linear warmup, then a cosine down to the floor.

    A function of the step has no state, so a resume can't make it jump. ``decay_steps`` is
    fixed at the first start, so adding epochs doesn't change the rate of steps already trained.

    Args:
        cfg: with ``decay_steps`` set.
    """
    assert cfg.decay_steps is not None
    if step <= cfg.warmup_steps:
        return cfg.learning_rate * step / cfg.warmup_steps
    progress = (step - cfg.warmup_steps) / (cfg.decay_steps - cfg.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return cfg.learning_rate * (cfg.min_lr_fraction + (1 - cfg.min_lr_fraction) * cosine)

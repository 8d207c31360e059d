"""The network, its optimizer, and the learning rate as a function of the step.

Cell 3. The question it answers: "what has to exist before the first step, and which parts have
state that a resume needs?"

    B  batch    D  features    C  classes
"""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.decoder import TinyDecoder


# %%
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


def build_model(cfg: TrainConfig, input_dim: int, num_classes: int) -> nn.Module:
    """The network for the configured data, initialized from the global random state."""
    if cfg.data_kind == "tokens":
        return TinyDecoder(cfg, num_classes)
    return TinyNet(input_dim, cfg.hidden_dim, num_classes, cfg.num_layers, cfg.dropout)


# %%
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


def build_scaler(cfg: TrainConfig, device: torch.device) -> torch.amp.GradScaler | None:
    """A loss scaler for fp16, whose smallest positive number is 6e-8; bf16 has fp32's range."""
    return torch.amp.GradScaler(device.type) if cfg.amp == "fp16" else None


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


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 (hex) over names and bytes of parameters and buffers, in state-dict order."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()

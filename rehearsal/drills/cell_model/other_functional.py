import math

import torch
import torch.nn.functional as F
from torch import nn


class TinyNet(nn.Module):
    def __init__(self, input_dim, hidden_dim, num_classes, num_layers, dropout):
        super().__init__()
        self.dropout = dropout
        self.head = nn.Linear(hidden_dim, num_classes)
        self.hidden = nn.ModuleList(
            nn.Linear(hidden_dim if layer else input_dim, hidden_dim)
            for layer in range(num_layers)
        )

    def forward(self, inputs):
        hidden = inputs
        for layer in self.hidden:
            hidden = F.dropout(F.gelu(layer(hidden)), self.dropout, training=self.training)
        return self.head(hidden)


def build_optimizer(cfg, model):
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decays = parameter.dim() > 1
        groups[decays].append(parameter)
    return torch.optim.AdamW(
        [{"params": params} for params in (groups[True],)]
        + [{"params": groups[False], "weight_decay": 0.0}],
        lr=cfg.learning_rate,
        weight_decay=cfg.weight_decay,
    )


def learning_rate_at(cfg, step):
    peak, floor = cfg.learning_rate, cfg.learning_rate * cfg.min_lr_fraction
    if cfg.warmup_steps and step < cfg.warmup_steps:
        return peak / cfg.warmup_steps * step
    if step >= cfg.decay_steps:
        return floor
    angle = math.pi * (step - cfg.warmup_steps) / (cfg.decay_steps - cfg.warmup_steps)
    return (peak + floor) / 2 + (peak - floor) / 2 * math.cos(angle)

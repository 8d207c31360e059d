from math import cos, pi, sqrt

import torch
from torch import nn


class TinyNet(nn.Module):
    """Handmade (in, out) matrices, and dropout as a handmade mask."""

    def __init__(self, input_dim, hidden_dim, num_classes, num_layers, dropout):
        super().__init__()
        sizes = [input_dim, *[hidden_dim] * num_layers, num_classes]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in zip(sizes, sizes[1:]):
            self.weights.append(torch.randn(fan_in, fan_out) / sqrt(fan_in))
            self.biases.append(torch.rand(fan_out) * 0.1)
        self.keep = 1 - dropout

    def forward(self, inputs):
        values = inputs
        *hidden, last = zip(self.weights, self.biases)
        for weight, bias in hidden:
            values = nn.functional.gelu(values @ weight + bias, approximate="tanh")
            if self.training and self.keep < 1:
                values = values * (torch.rand_like(values) < self.keep) / self.keep
        return values @ last[0] + last[1]


def build_optimizer(cfg, model):
    """One group per parameter, so a rate per layer would be one more line."""
    groups = []
    for parameter in model.parameters():
        decay = 0.0 if len(parameter.shape) < 2 else cfg.weight_decay
        groups.append(dict(params=[parameter], weight_decay=decay, lr=cfg.learning_rate))
    return torch.optim.AdamW(groups, foreach=False)


def learning_rate_at(cfg, step):
    step = min(step, cfg.decay_steps)
    up = min(step, cfg.warmup_steps) / max(cfg.warmup_steps, 1) if cfg.warmup_steps else 1.0
    done = max(step - cfg.warmup_steps, 0) / (cfg.decay_steps - cfg.warmup_steps)
    left = (1 + cos(pi * done)) / 2
    return cfg.learning_rate * up * (left + (1 - left) * cfg.min_lr_fraction)

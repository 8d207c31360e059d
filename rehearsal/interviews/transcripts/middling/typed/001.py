import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class TrainConfig:
    run_dir: str = "runs/live"
    dataset_size: int = 2000
    max_epochs: int = 3
    seed: int = 0
    global_batch_size: int = 32
    micro_batch_size: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    dropout: float = 0.1
    checkpoint_every_steps: int = 25
    device: str = "cpu"

    def __post_init__(self):
        for name in ("dataset_size", "max_epochs", "global_batch_size", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not self.learning_rate > 0 or self.learning_rate == float("inf"):
            raise ValueError(f"bad learning rate {self.learning_rate}")
        if self.checkpoint_every_steps < 1 or self.warmup_steps < 1 or self.seed < 0:
            raise ValueError("checkpoint_every_steps and warmup_steps must be at least 1")

    @property
    def steps_per_epoch(self):
        return -(-self.dataset_size // self.global_batch_size)


class ToyClassificationDataset:
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        self.x = torch.randn(cfg.dataset_size, 8, generator=g)
        self.y = self.x[:, :4].argmax(1)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ResumeAwareDistributedSampler:
    def __init__(self, cfg, rank, world_size, position):
        self.cfg, self.rank, self.world_size = cfg, rank, world_size
        self.position = position

    def __iter__(self):
        cfg, steps = self.cfg, self.cfg.steps_per_epoch
        for epoch in range(self.position // steps, cfg.max_epochs):
            g = torch.Generator().manual_seed(cfg.seed * 100_003 + epoch)
            order = torch.randperm(cfg.dataset_size, generator=g)
            first = max(0, self.position - epoch * steps)
            for step in range(first, steps):
                start = step * cfg.global_batch_size
                batch = order[start : start + cfg.global_batch_size]
                yield epoch, batch[self.rank :: self.world_size], len(batch)

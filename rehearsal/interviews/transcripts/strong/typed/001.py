from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class TrainConfig:
    run_dir: str = "runs/live"
    dataset_size: int = 2000
    max_epochs: int = 3
    seed: int = 17
    global_batch_size: int = 32  # fixed; the ranks share it
    micro_batch_size: int = 8
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    dropout: float = 0.1
    checkpoint_every_steps: int = 25
    device: str = "cpu"

    def __post_init__(self):
        limits = {"seed": (0, float("inf")), "dropout": (0, 1)}
        for name, value in vars(self).items():
            least, most = limits.get(name, (1e-9, float("inf")))
            # Written so that NaN fails it.
            if not isinstance(value, str) and not least <= value < most:
                raise ValueError(f"{name}={value}: must be in [{least}, {most})")

    @property
    def steps_per_epoch(self):
        return -(-self.dataset_size // self.global_batch_size)


def derived_seed(*key):
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "big")


class ToyClassificationDataset:
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(derived_seed("data", cfg.seed))
        self.inputs = torch.randn(cfg.dataset_size, 8, generator=g)
        self.labels = self.inputs[:, :4].argmax(1)

    def __getitem__(self, samples):
        return self.inputs[samples], self.labels[samples]


@dataclass
class ResumeAwareDistributedSampler:
    cfg: TrainConfig
    rank: int
    world_size: int
    position: int  # optimizer steps completed, over the whole run

    def __iter__(self):
        cfg = self.cfg
        for step in range(self.position, cfg.max_epochs * cfg.steps_per_epoch):
            epoch, at = divmod(step, cfg.steps_per_epoch)
            if at == 0 or step == self.position:
                g = torch.Generator().manual_seed(derived_seed("order", cfg.seed, epoch))
                order = torch.randperm(cfg.dataset_size, generator=g)
            batch = order[at * cfg.global_batch_size : (at + 1) * cfg.global_batch_size]
            yield epoch, batch[self.rank :: self.world_size], len(batch)

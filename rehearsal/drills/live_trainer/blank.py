# Derived by scripts/sync_notebooks.py; edit trainer_core/live.py.
from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn


class UserError(ValueError):
    """Something the user can fix: one line and exit code 2."""


@dataclass(frozen=True)
class TrainConfig:
    run_dir: str = "runs/live"
    dataset_size: int = 2000
    max_epochs: int = 3
    seed: int = 17
    global_batch_size: int = 32  # fixed, so the number of ranks may change
    micro_batch_size: int = 8  # what fits in memory; accumulation follows
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    dropout: float = 0.1
    checkpoint_every_steps: int = 25
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    def __post_init__(self):
        raise NotImplementedError

    @property
    def steps_per_epoch(self):
        raise NotImplementedError


class ToyClassificationDataset:
    def __init__(self, cfg):
        raise NotImplementedError

    def __getitem__(self, samples):
        raise NotImplementedError


@dataclass
class ResumeAwareDistributedSampler:
    """What follows after ``position`` completed steps: epoch, this rank's samples, S."""

    cfg: TrainConfig
    rank: int
    world_size: int
    position: int

    def __iter__(self):
        raise NotImplementedError


class TinyNet(nn.Sequential):
    def __init__(self, cfg):
        raise NotImplementedError


def learning_rate_at(cfg, step):
    """Linear warmup, then 1/sqrt(step). A function has no state to save."""
    raise NotImplementedError


def maybe_init_dist(cfg):
    """Rank and world size. torchrun tells each process who it is."""
    raise NotImplementedError


def wrap_model(cfg, model):
    raise NotImplementedError


def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    """One optimizer step; returns this rank's part of the mean loss."""
    raise NotImplementedError


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_checkpoint(folder, step, model, optimizer):
    """A kill leaves a complete checkpoint or none.

    Exactly one rank calls this; a second would set its checkpoint aside.
    """
    raise NotImplementedError


def latest_checkpoint_path(folder):
    """The newest intact checkpoint; None if there never was one."""
    raise NotImplementedError


def restore_checkpoint(path, model, optimizer):
    """Returns the number of completed steps."""
    raise NotImplementedError


class StepTimers:
    """Where one phase ends, the next begins, so the phases add up to the step."""

    def __init__(self):
        raise NotImplementedError

    def end(self, phase):
        raise NotImplementedError


def log_rank_event(file, **fields):
    """One line, flushed: a SIGKILL can't take it back."""
    raise NotImplementedError


def run(cfg):
    """Train to the end, from wherever the run folder says. Every rank calls this."""
    raise NotImplementedError

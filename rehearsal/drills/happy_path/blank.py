from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


class TrainConfig:
    """The settings of a run, and the folder it may write to."""

    def __init__(self, *, num_samples, batch_size, epochs, lr, seed, folder):
        raise NotImplementedError


def make_dataset(config):
    """Toy data: num_samples (input, class) pairs, by index."""
    raise NotImplementedError


def make_model(config):
    """A small classifier: inputs (B, ...) to logits (B, C)."""
    raise NotImplementedError


def run(config):
    """Train, save after each epoch, resume from the last save; metrics per epoch trained."""
    raise NotImplementedError

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


class TrainConfig:
    """What a run is: the numbers, and the folder that it may write to."""

    def __init__(self, *, num_samples, batch_size, epochs, lr, seed, folder):
        raise NotImplementedError


def make_dataset(config):
    """Toy data: as many (input, class) pairs as the config says, by index."""
    raise NotImplementedError


def make_model(config):
    """A small classifier: inputs (B, ...) to logits (B, C)."""
    raise NotImplementedError


def run(config):
    """Train, save after each epoch, go on from the last save; metrics per epoch trained."""
    raise NotImplementedError

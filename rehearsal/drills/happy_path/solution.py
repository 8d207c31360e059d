import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of a run, and the folder it may write to."""

    num_samples: int
    batch_size: int
    epochs: int
    lr: float
    seed: int
    folder: Path

    def __post_init__(self):
        for name in ("num_samples", "batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


def make_dataset(config):
    """Points in eight dimensions; the class is the index of the largest of the first three."""
    generator = torch.Generator().manual_seed(config.seed)
    inputs = torch.randn(config.num_samples, 8, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))


def make_model(config):
    torch.manual_seed(config.seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))


def train_epoch(model, optimizer, dataset, config, epoch):
    """One pass over the data, in this epoch's order; returns the mean loss of its samples."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order = torch.randperm(len(dataset), generator=generator)
    total = 0.0
    for batch in order.split(config.batch_size):
        inputs, classes = dataset[batch]
        loss = nn.functional.cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)  # the last batch may be smaller
    return total / len(dataset)


def run(config):
    """Train, save after each epoch, resume from the last save; metrics per epoch trained."""
    dataset, model = make_dataset(config), make_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    path, first = Path(config.folder) / "latest.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epochs_done"]
    metrics = []
    for epoch in range(first, config.epochs):
        loss = train_epoch(model, optimizer, dataset, config, epoch)
        metrics.append({"epoch": epoch, "loss": loss})
        print(metrics[-1], flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"epochs_done": epoch + 1}, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)
    return metrics

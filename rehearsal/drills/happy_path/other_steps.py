import random
from collections import namedtuple
from pathlib import Path

import torch
import torch.nn.functional as F


class TrainConfig(namedtuple("Fields", "num_samples batch_size epochs lr seed folder")):
    def __new__(cls, *, num_samples, batch_size, epochs, lr, seed, folder):
        if num_samples < 1 or batch_size < 1 or epochs < 1:
            raise ValueError("num_samples, batch_size and epochs must be at least 1")
        return super().__new__(cls, num_samples, batch_size, epochs, lr, seed, folder)


def make_dataset(config):
    """Do most of three judges say yes? Many samples have equal inputs."""
    dice = random.Random(config.seed)
    rows = [[dice.choice((-1.0, 1.0)) for _ in range(3)] for _ in range(config.num_samples)]
    return [(torch.tensor(row), int(sum(row) > 0)) for row in rows]


def make_model(config):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(config.seed))
    torch.nn.init.zeros_(model.bias)
    return model


def run(config):
    """One loop over steps; the position is saved after each one."""
    data, model, path = make_dataset(config), make_model(config), Path(config.folder) / "state"
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    state = {"step": 0, "loss": 0.0}
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    per_epoch = -(-len(data) // config.batch_size)
    metrics = []
    for step in range(state["step"], per_epoch * config.epochs):
        epoch, place = divmod(step, per_epoch)
        order = random.Random(f"{config.seed} {epoch}").sample(range(len(data)), len(data))
        batch = [data[i] for i in order[place * config.batch_size :][: config.batch_size]]
        inputs, classes = (
            torch.stack([x for x, _ in batch]),
            torch.tensor([y for _, y in batch]),
        )
        model.zero_grad()
        losses = F.cross_entropy(model(inputs), classes, reduction="none")
        losses.mean().backward()
        optimizer.step()
        state["loss"] += losses.sum().item()
        state["step"] = step + 1
        if place + 1 == per_epoch:
            metrics.append({"epoch": epoch, "loss": state["loss"] / len(data)})
            state["loss"] = 0.0
        state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{path}.new")
        Path(f"{path}.new").rename(path)
    return metrics

import os
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def train_alone(model, inputs, targets, *, folder, devices, epochs, batch_size, lr, seed):
    """The single-process trainer."""
    device = devices[0]
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(len(inputs), generator=generator)
        total = 0.0
        for batch in order.split(batch_size):
            x, y = inputs[batch].to(device), targets[batch].to(device)
            loss = (model(x) - y).pow(2).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch} loss {total / len(inputs):.4f}")
        torch.save(model.state_dict(), folder / "model.pt")


def identity():
    """This process's rank, its local rank, and the world size."""
    raise NotImplementedError


def train(model, inputs, targets, *, folder, devices, epochs, batch_size, lr, seed):
    """The same training, on every rank of the job."""
    raise NotImplementedError

import json
import statistics
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist

PHASES = ["data_wait", "forward", "backward", "grad_sync", "optimizer", "checkpoint", "other"]


def train_blind(model, batches, *, lr, save, save_every):
    """The loop, on each rank of a group. Nobody knows where its time goes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        if step % save_every == 0:
            save(step)


def train(model, batches, *, lr, save, save_every, folder):
    """The same loop; it reports where its time goes."""
    raise NotImplementedError

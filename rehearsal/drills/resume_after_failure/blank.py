import os
from pathlib import Path

import torch
import torch.distributed as dist


def order_of(epoch, num_samples):
    """The samples of an epoch, in training order."""
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(num_samples, generator=generator).tolist()


def train_step(model, optimizer, inputs, targets, samples):
    """One optimizer step on ``samples``, on all ranks together."""
    mine = samples[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    ((model(inputs[mine]) - targets[mine]).pow(2).sum() / len(samples)).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train_once(model, inputs, targets, *, epochs, global_batch_size, lr):
    """The uninterrupted run."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    torch.manual_seed(dist.get_rank())  # each rank draws its own dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
    for epoch in range(epochs):
        order = order_of(epoch, len(inputs))
        for first in range(0, len(inputs), global_batch_size):
            samples = order[first : first + global_batch_size]
            train_step(model, optimizer, inputs, targets, samples)
            schedule.step()


def train(model, inputs, targets, *, folder, epochs, global_batch_size, lr, save_every):
    """The run that may be killed at any moment and is then called again."""
    raise NotImplementedError

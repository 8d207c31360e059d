import contextlib
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, micro_batches, *, lr, grad_accum_steps):
    """One optimizer step for every grad_accum_steps micro-batches of each rank."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    micro_batches = iter(micro_batches)
    while step := list(islice(micro_batches, grad_accum_steps)):
        optimizer.zero_grad()
        for number, (ids, targets, mask) in enumerate(step, start=1):
            is_last = number == len(step)
            # Only a step's last backward syncs gradients.
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                loss = masked_loss(ddp(ids), targets, mask)
                (loss / len(step)).backward()
        optimizer.step()


def masked_loss(outputs, targets, mask):
    """The mean squared error over the tokens that aren't padding. All (B, T)."""
    errors = (outputs - targets).pow(2) * mask
    return errors.sum() / mask.sum().clamp(min=1)

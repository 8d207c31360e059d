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
        # The step's tokens, in all its micro-batches and on all ranks.
        num_tokens = sum(mask.sum() for _, _, mask in step).float()
        dist.all_reduce(num_tokens)
        for number, (ids, targets, mask) in enumerate(step, start=1):
            is_last = number == len(step)
            # Only a step's last backward syncs gradients.
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                # DDP averages over ranks, but we want the sum.
                scale = dist.get_world_size() / num_tokens
                (masked_loss(ddp(ids), targets, mask) * scale).backward()
        optimizer.step()


def masked_loss(outputs, targets, mask):
    """The sum of squared errors over the tokens that aren't padding. All (B, T)."""
    errors = (outputs - targets).pow(2) * mask
    return errors.sum()

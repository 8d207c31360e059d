import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, epochs, global_batch_size, micro_batch_size, max_norm, lr):
    """DDP syncs in the last backward pass of a step; the norm is taken after it."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    rank, world_size, norms = dist.get_rank(), dist.get_world_size(), []
    for _ in range(epochs):
        for step in torch.arange(len(inputs)).split(global_batch_size):
            optimizer.zero_grad()
            micro_batches = step[rank::world_size].split(micro_batch_size)
            for number, micro in enumerate(micro_batches, start=1):
                is_last = number == len(micro_batches)
                with contextlib.nullcontext() if is_last else ddp.no_sync():
                    loss = (ddp(inputs[micro]) - targets[micro]).pow(2).sum() / len(step)
                    (loss * world_size).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)))
            optimizer.step()
    return norms

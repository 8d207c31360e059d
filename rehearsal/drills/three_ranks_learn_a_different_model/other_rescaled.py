import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, micro_batches, *, lr, grad_accum_steps):
    """Rescales DDP's average of summed losses to a mean over tokens, before the update."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    num_tokens, micro_step = 0, 0
    for ids, targets, mask in micro_batches:
        micro_step += 1
        is_last = micro_step % grad_accum_steps == 0
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            (((ddp(ids) - targets) ** 2) * mask).sum().backward()
        num_tokens += int(mask.sum())
        if is_last:
            counts = [None] * dist.get_world_size()
            dist.all_gather_object(counts, num_tokens)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(len(counts) / sum(counts))
            optimizer.step()
            optimizer.zero_grad()
            num_tokens = 0

import copy
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Takes every step, checks the weights, and rolls back a step that ruined them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    path, done, skipped = folder / "latest.pt", 0, []
    if path.exists():
        state = torch.load(path)
        done = state["done"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    steps = [
        range(first, min(first + global_batch_size, len(inputs)))
        for _ in range(epochs)
        for first in range(0, len(inputs), global_batch_size)
    ]
    for step, samples in enumerate(steps, 1):
        if step <= done:
            continue
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        mine = list(samples)[rank::world_size]
        optimizer.zero_grad()
        # DDP averages over ranks, and gives every rank the same gradient.
        loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum() * world_size / len(samples)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if not all(value.isfinite().all() for value in (total, *model.parameters())):
            model.load_state_dict(before[0])
            optimizer.load_state_dict(before[1])
            skipped.append(step)
        if rank == 0 and step % checkpoint_every == 0:
            state = {"done": step, "model": model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, folder / "new.pt")
            os.replace(folder / "new.pt", path)
    return skipped

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Every rank shares the state it has, and all resume from the newest."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    path, step = folder / "latest.pt", 0
    states = [None] * world_size
    dist.all_gather_object(states, torch.load(path) if path.exists() else None)
    states = [state for state in states if state is not None]
    if states:
        best = max(states, key=lambda state: state["step"])
        step = best["step"]
        model.load_state_dict(best["model"])
        optimizer.load_state_dict(best["optimizer"])
    # DDP broadcasts rank 0's weights, which is what a new run needs. It's no substitute for
    # the exchange above: optimizer state and step would still differ.
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    while True:
        epoch, first = divmod(step * global_batch_size, padded_size(global_batch_size, inputs))
        if epoch == epochs:
            break
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        samples = order[first : first + global_batch_size]
        mine = samples[rank::world_size]
        optimizer.zero_grad()
        loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum() * world_size / len(samples)
        loss.backward()
        optimizer.step()
        step += 1
        if step % checkpoint_every == 0:
            state = {"step": step, "model": model.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, folder / "new.pt")
            os.replace(folder / "new.pt", path)


def padded_size(global_batch_size, inputs):
    """Samples in an epoch if its last step were full."""
    return -(-len(inputs) // global_batch_size) * global_batch_size

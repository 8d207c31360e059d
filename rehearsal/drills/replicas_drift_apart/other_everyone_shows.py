import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Every rank shows the state that it has, and all go on from the one that is furthest."""
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
    # Its constructor broadcasts rank 0's weights, so it comes after all ranks have restored.
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    while True:
        epoch, first = divmod(step * global_batch_size, steps_times(global_batch_size, inputs))
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


def steps_times(global_batch_size, inputs):
    """The samples of an epoch if its last step were full."""
    return -(-len(inputs) // global_batch_size) * global_batch_size

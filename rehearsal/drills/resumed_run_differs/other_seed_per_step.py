import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def seed_of(seed, step, rank):
    """A seed that no other step or rank has."""
    digest = hashlib.sha256(f"noise {seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def train(model, inputs, targets, *, folder, epochs, batch_size, checkpoint_every, seed, lr):
    """Saves no random state: a step's noise is a function of seed, step and rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    path, step = folder / "last.pt", 0
    if path.exists():
        state = torch.load(path)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    global_batch_size = batch_size * world_size
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    for step in range(step, epochs * steps_per_epoch):
        epoch, at = divmod(step, steps_per_epoch)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        samples = order.split(global_batch_size)[at]
        mine = samples[rank::world_size]
        torch.manual_seed(seed_of(seed, step, rank))
        optimizer.zero_grad()
        loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum() * world_size / len(samples)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % checkpoint_every == 0:
            state = {"step": step + 1, "model": model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, folder / "new")
            os.replace(folder / "new", path)

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Global batches are cut before the ranks' shares; the position is the number of steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        batches += torch.randperm(len(inputs), generator=generator).split(global_batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    path, done = folder / "state.pt", 0
    if path.exists():
        state = torch.load(path)
        done = state["steps"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for steps, batch in list(enumerate(batches, 1))[done:]:
        mine = batch[rank::world_size]
        optimizer.zero_grad()
        # DDP averages over ranks, but we want the sum.
        loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum() * world_size / len(batch)
        loss.backward()
        optimizer.step()
        if rank == 0 and steps % checkpoint_every == 0:
            state = {"steps": steps, "model": model.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, folder / "state.new")
            os.rename(folder / "state.new", path)

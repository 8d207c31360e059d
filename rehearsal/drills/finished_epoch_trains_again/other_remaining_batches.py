import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """The checkpoint lists the batches that remain to be trained, epoch by epoch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    found = sorted(folder.glob("done-*.pt"))
    if found:
        state = torch.load(found[-1])
        remaining, done = state["remaining"], state["done"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    else:
        remaining = [shuffled(inputs, epoch, global_batch_size) for epoch in range(epochs)]
        done = 0
    while remaining:
        batch = remaining[0].pop(0)
        if not remaining[0]:
            remaining.pop(0)
            is_end_of_epoch = True
        else:
            is_end_of_epoch = False
        mine = batch[rank::world_size]
        optimizer.zero_grad()
        # DDP averages over ranks, but we want the sum.
        loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum() * world_size / len(batch)
        loss.backward()
        optimizer.step()
        done += 1
        if rank == 0 and (is_end_of_epoch or done % checkpoint_every == 0):
            state = {"remaining": remaining, "done": done, "model": model.state_dict()}
            temporary = folder / "writing"
            torch.save({**state, "optimizer": optimizer.state_dict()}, temporary)
            os.replace(temporary, folder / f"done-{done:09d}.pt")


def shuffled(inputs, epoch, global_batch_size):
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch + 9))
    return [batch.tolist() for batch in order.split(global_batch_size)]

import os

import torch
import torch.distributed as dist


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """The position is the number of optimizer steps; epoch and batch follow from it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    step, path = 0, folder / "state"
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    if path.is_file():
        step, weights, moments = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    while step < epochs * steps_per_epoch:
        epoch, batch = divmod(step, steps_per_epoch)
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(inputs), generator=generator).split(global_batch_size)[batch]
        mine = order[rank::world_size]
        optimizer.zero_grad()
        ((model(inputs[mine]) - targets[mine]) ** 2).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= len(order)
        optimizer.step()
        step += 1
        if rank == 0 and (step % checkpoint_every == 0 or step % steps_per_epoch == 0):
            torch.save((step, model.state_dict(), optimizer.state_dict()), folder / "next")
            os.rename(folder / "next", path)

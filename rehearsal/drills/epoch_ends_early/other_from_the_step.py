import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def train(model, dataset, *, folder, epochs, batch_size, checkpoint_every, num_workers, lr):
    """Keeps no sampler state: epoch and batch follow from the number of optimizer steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    path, step = folder / "last.pt", 0
    if path.exists():
        state = torch.load(path)
        step = state.pop("step")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    per_epoch = len(batches_of(0, dataset, batch_size, rank, world_size))
    while step < epochs * per_epoch:
        epoch, done = divmod(step, per_epoch)
        batches = batches_of(epoch, dataset, batch_size, rank, world_size)[done:]
        for batch in DataLoader(dataset, batch_sampler=batches, num_workers=num_workers):
            train_step(model, optimizer, *batch)
            step += 1
            if step % checkpoint_every == 0 and rank == 0:
                state = {"step": step, "model": model.state_dict()}
                torch.save(state | {"optimizer": optimizer.state_dict()}, f"{path}.new")
                os.replace(f"{path}.new", path)


def batches_of(epoch, dataset, batch_size, rank, world_size):
    generator = torch.Generator().manual_seed(epoch)
    mine = torch.randperm(len(dataset), generator=generator)[rank::world_size]
    return [batch.tolist() for batch in mine.split(batch_size)]


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    ((model(inputs) - targets) ** 2).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([float(len(inputs))])])
    dist.all_reduce(flat)
    for g, part in zip(grads, (flat[:-1] / flat[-1]).split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))
    optimizer.step()

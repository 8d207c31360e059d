import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def loader_of(epoch, first, inputs, targets, batch_size):
    """This rank's batches of an epoch, from batch ``first`` on."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
    mine = order[dist.get_rank() :: dist.get_world_size()].split(batch_size)[first:]
    batches = [batch.tolist() for batch in mine]
    # Each new pass over a loader draws a base seed, even without workers. A resumed run
    # iterates once more, so a draw from the global generator would shift the noise.
    own = torch.Generator()
    return DataLoader(TensorDataset(inputs, targets), batch_sampler=batches, generator=own)


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    (model(inputs) - targets).pow(2).sum().backward()
    size = torch.tensor(len(inputs))
    dist.all_reduce(size)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
    optimizer.step()


def save(path, **state):
    """Rank 0 writes the file, which holds every rank's random state."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if dist.get_rank() == 0:
        torch.save({**state, "rng": states}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


def train(model, inputs, targets, *, folder, epochs, batch_size, checkpoint_every, seed, lr):
    rank, path = dist.get_rank(), folder / "checkpoint.pt"
    # Each rank draws its own noise.
    torch.manual_seed(seed + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    first_epoch, batch, step = 0, 0, 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, batch, step = state["epoch"], state["batch"], state["step"]
        torch.set_rng_state(state["rng"][rank])
    for epoch in range(first_epoch, epochs):
        for batch_inputs, batch_targets in loader_of(epoch, batch, inputs, targets, batch_size):
            train_step(model, optimizer, batch_inputs, batch_targets)
            batch += 1
            step += 1
            if step % checkpoint_every == 0:
                save(path, model=model.state_dict(), optimizer=optimizer.state_dict(),
                     epoch=epoch, batch=batch, step=step)
        batch = 0

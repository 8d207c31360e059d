import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler


class ResumableSampler(Sampler):
    """This rank's samples of the current epoch, from the saved position on."""

    def __init__(self, num_samples, rank, world_size):
        self.num_samples, self.rank, self.world_size = num_samples, rank, world_size
        self.epoch, self.consumed = 0, 0

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator).tolist()
        # The loader prefetches: samples it takes from here aren't trained yet.
        yield from order[self.rank :: self.world_size][self.consumed :]

    def state_dict(self):
        return {"epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state):
        self.epoch, self.consumed = state["epoch"], state["consumed"]


def save(path, state):
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def train(model, dataset, *, folder, epochs, batch_size, checkpoint_every, num_workers, lr):
    rank, world_size, path = dist.get_rank(), dist.get_world_size(), folder / "latest.pt"
    sampler = ResumableSampler(len(dataset), rank, world_size)
    loader = DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step = 0
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    for epoch in range(sampler.epoch, epochs):
        sampler.epoch = epoch
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).pow(2).sum().backward()
            size = torch.tensor(len(inputs))
            dist.all_reduce(size)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= size
            optimizer.step()
            step += 1
            sampler.consumed += len(inputs)
            if step % checkpoint_every == 0 and rank == 0:
                save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "sampler": sampler.state_dict(), "step": step})
        sampler.consumed = 0

import os

import torch
import torch.distributed as dist


class ShardedOrder:
    """This rank's share of each epoch's order, and how much of it is done."""

    def __init__(self, num_samples, rank, world_size):
        self.num_samples, self.rank, self.world_size = num_samples, rank, world_size
        self.epoch, self.done = 0, 0

    def next_batch(self, size):
        """This rank's next ``size`` samples; fewer, or none, at the end of an epoch."""
        generator = torch.Generator().manual_seed(40 + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator)
        return order[self.rank :: self.world_size][self.done : self.done + size]

    def advance(self, size):
        self.done += size
        if self.done * self.world_size >= self.num_samples:
            self.epoch, self.done = self.epoch + 1, 0

    # A rank's count depends on the world size; the job's total doesn't.
    def state_dict(self):
        return {"epoch": self.epoch, "done_by_all": self.done * self.world_size}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done_by_all"] // self.world_size


def train_step(model, optimizer, inputs, targets):
    """One step on the mean over all ranks' samples; a rank may have none."""
    optimizer.zero_grad()
    (model(inputs) - targets).pow(2).sum().backward()
    size = torch.tensor(len(inputs))
    dist.all_reduce(size)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
    optimizer.step()


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size, path = dist.get_rank(), dist.get_world_size(), folder / "checkpoint.pt"
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    order, step = ShardedOrder(len(inputs), rank, world_size), 0
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        order.load_state_dict(state["order"])
        step = state["step"]
    batch_size = global_batch_size // world_size
    while order.epoch < epochs:
        batch = order.next_batch(batch_size)
        train_step(model, optimizer, inputs[batch], targets[batch])
        order.advance(batch_size)
        step += 1
        if step % checkpoint_every == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "order": order.state_dict(), "step": step}, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)

import os

import torch
import torch.distributed as dist


class Checkpoints:
    """A run's last two checkpoints; rank 0 writes, all ranks read."""

    def __init__(self, folder):
        self.folder = folder

    def all(self):
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step, model, optimizer):
        if dist.get_rank() == 0:
            state = {"step": step, "model": model.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, self.folder / "new")
            os.replace(self.folder / "new", self.folder / f"step-{step:08d}.pt")
            for old in self.all()[:-2]:
                old.unlink()

    def restore(self, model, optimizer):
        """Load the newest checkpoint, if there is one; return its step, or 0."""
        if not self.all():
            return 0
        state = torch.load(self.all()[-1])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    checkpoints = Checkpoints(folder)
    step = checkpoints.restore(model, optimizer)
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    skipped = []
    while step < epochs * steps_per_epoch:
        first = step % steps_per_epoch * global_batch_size
        last = min(first + global_batch_size, len(inputs))
        mine = list(range(first + rank, last, world_size))
        step += 1
        optimizer.zero_grad()
        loss = (model(inputs[mine]) - targets[mine]).pow(2).sum() / (last - first)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        # A loss can overflow although its gradient is finite, and the other way round.
        sums = [loss.detach(), *grads]
        for tensor in sums:
            dist.all_reduce(tensor)
        # After the all-reduce, every rank sees the same sums, with any rank's NaN in them. So
        # all ranks make the same decision.
        if all(torch.isfinite(tensor).all() for tensor in sums):
            optimizer.step()
        else:
            skipped.append(step)
        if step % checkpoint_every == 0:
            checkpoints.save(step, model, optimizer)
    return skipped

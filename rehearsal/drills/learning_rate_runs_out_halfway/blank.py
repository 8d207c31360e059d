import os

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR


class Checkpoints:
    """A run's last two checkpoints; rank 0 writes, all ranks read."""

    def __init__(self, folder, model, optimizer):
        self.folder = folder
        self.model = model
        self.optimizer = optimizer

    def all(self):
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step):
        if dist.get_rank() == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**state, "step": step}, self.folder / "new")
            os.replace(self.folder / "new", self.folder / f"step-{step:08d}.pt")
            for old in self.all()[:-2]:
                old.unlink()

    def restore(self):
        """Load the newest checkpoint, if there is one; return its step, or 0."""
        if not self.all():
            return 0
        state = torch.load(self.all()[-1])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]


class Batches:
    """The samples of each step, in index order, and this rank's micro-batches of them."""

    def __init__(self, num_samples, global_batch_size, micro_batch_size):
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.steps_per_epoch = -(-num_samples // global_batch_size)

    @property
    def micro_batches_per_step(self):
        share = -(-self.global_batch_size // dist.get_world_size())
        return -(-share // self.micro_batch_size)

    def of_step(self, step):
        """This rank's micro-batches, and the number of samples of all ranks."""
        first = step % self.steps_per_epoch * self.global_batch_size
        last = min(first + self.global_batch_size, self.num_samples)
        mine = list(range(first + dist.get_rank(), last, dist.get_world_size()))
        size = self.micro_batch_size
        return [mine[at : at + size] for at in range(0, len(mine), size)], last - first


def factor_of(warmup, total):
    """A linear warmup to 1, then a linear decay to 0 after ``total``."""

    def factor(done):
        if done < warmup:
            return (done + 1) / warmup
        return max(0.0, (total - done) / (total - warmup))

    return factor


def groups_of(model, lr):
    """Biases train at twice the rate of everything else."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if not name.endswith("bias")], "lr": lr},
        {"params": [p for name, p in named if name.endswith("bias")], "lr": 2 * lr},
    ]


def train(
    model,
    inputs,
    targets,
    *,
    folder,
    epochs,
    global_batch_size,
    micro_batch_size,
    warmup_steps,
    checkpoint_every,
    lr,
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    batches = Batches(len(inputs), global_batch_size, micro_batch_size)
    steps = epochs * batches.steps_per_epoch
    optimizer = torch.optim.SGD(groups_of(model, lr), momentum=0.9)
    warmup = warmup_steps * batches.micro_batches_per_step
    schedule = LambdaLR(optimizer, factor_of(warmup, steps))
    checkpoints = Checkpoints(folder, model, optimizer)
    step = checkpoints.restore()
    for _ in range(step):
        schedule.step()
    rates = []
    while step < steps:
        micro_batches, size = batches.of_step(step)
        optimizer.zero_grad()
        for samples in micro_batches:
            loss = (model(inputs[samples]) - targets[samples]).pow(2).sum() / size
            loss.backward()
            schedule.step()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        rates.append((step, optimizer.param_groups[0]["lr"]))
        if step % checkpoint_every == 0:
            checkpoints.save(step)
    return rates

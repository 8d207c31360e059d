import os

import torch
import torch.distributed as dist


def factor(step):
    """The factor on the rates in a step, counted from 0: warmup, then decay."""
    return min(1.0, (step + 1) / 3) * 0.9**step


def groups_of(model, lr, weight_decay):
    """Vectors have twice the learning rate of matrices, and no weight decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "lr": lr, "weight_decay": weight_decay},
        {"params": vectors, "lr": 2 * lr, "weight_decay": 0.0},
    ]


class AdamW:
    """AdamW without settings: its state has the names of torch's own, and nothing else."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.state = {}

    def update(self, number, rate, decay):
        parameter = self.parameters[number]
        if parameter.grad is None:
            return
        grad = parameter.grad
        if number not in self.state:
            zeros = torch.zeros_like(grad)
            self.state[number] = {"step": 0, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        moments = self.state[number]
        moments["step"] += 1
        count = float(moments["step"])
        moments["exp_avg"].lerp_(grad, 0.1)
        moments["exp_avg_sq"].lerp_(grad * grad, 0.001)
        mean = moments["exp_avg"] / (1 - 0.9**count)
        size = (moments["exp_avg_sq"] / (1 - 0.999**count)).sqrt() + 1e-8
        parameter.data.mul_(1 - rate * decay).sub_(rate * mean / size)


def train(
    model, inputs, targets, *, folder, steps, global_batch_size, lr, weight_decay, save_every
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    path, done = folder / "latest.pt", 0
    groups = groups_of(model, lr, weight_decay)
    settings = [(g["lr"], g["weight_decay"]) for g in groups for _ in g["params"]]
    optimizer = AdamW([p for group in groups for p in group["params"]])
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.state, done = saved["optimizer"]["state"], saved["step"]
    for step in range(done, steps):
        first, last = step * global_batch_size, (step + 1) * global_batch_size
        mine = [i % len(inputs) for i in range(first + rank, last, world_size)]
        model.zero_grad()
        error = (model(inputs[mine]) - targets[mine]).pow(2).sum()
        (error / global_batch_size).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        for number, (rate, decay) in enumerate(settings):
            optimizer.update(number, rate * factor(step), decay)
        if rank == 0 and (step + 1) % save_every == 0:
            state = {"model": model.state_dict(), "optimizer": {"state": optimizer.state}}
            torch.save(state | {"step": step + 1}, folder / "new")
            os.replace(folder / "new", path)

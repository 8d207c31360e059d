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


def train(
    model, inputs, targets, *, folder, steps, global_batch_size, lr, weight_decay, save_every
):
    """No schedule object: each step computes its own rate, so nothing can go stale."""
    rank, world_size, path = dist.get_rank(), dist.get_world_size(), folder / "latest.pt"
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    groups = groups_of(model, lr, weight_decay)
    settings = [{"lr": group["lr"], "weight_decay": group["weight_decay"]} for group in groups]
    optimizer, done = torch.optim.AdamW(groups), 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    for step in range(done, steps):
        for group, own in zip(optimizer.param_groups, settings):
            group["lr"] = own["lr"] * factor(step)
            group["weight_decay"] = own["weight_decay"]
        samples = torch.arange(step * global_batch_size, (step + 1) * global_batch_size)
        mine = samples[rank::world_size] % len(inputs)
        optimizer.zero_grad()
        error = (model(inputs[mine]) - targets[mine]).pow(2).sum()
        (error / global_batch_size).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0 and (step + 1) % save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1}, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)

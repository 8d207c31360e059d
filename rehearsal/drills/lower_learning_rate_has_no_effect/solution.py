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


def save(path, parts, step):
    state = {name: part.state_dict() for name, part in parts.items()}
    if dist.get_rank() == 0:
        torch.save(state | {"step": step}, f"{path}.new")
        os.replace(f"{path}.new", path)


def restore(path, parts):
    """Restore the checkpoint, if there is one; return the number of completed steps."""
    if not path.exists():
        return 0
    state, optimizer, schedule = torch.load(path), parts["optimizer"], parts["schedule"]
    # A state dict holds settings as well as state; replace the settings with this call's.
    state["optimizer"]["param_groups"] = optimizer.state_dict()["param_groups"]
    state["schedule"]["base_lrs"] = schedule.base_lrs
    for name, part in parts.items():
        part.load_state_dict(state[name])
    for group, base_lr in zip(optimizer.param_groups, schedule.base_lrs):
        group["lr"] = base_lr * factor(state["step"])
    return state["step"]


def train_step(model, optimizer, inputs, targets, samples):
    mine = samples[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    ((model(inputs[mine]) - targets[mine]).pow(2).sum() / len(samples)).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train(
    model, inputs, targets, *, folder, steps, global_batch_size, lr, weight_decay, save_every
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.AdamW(groups_of(model, lr, weight_decay))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    done = restore(folder / "latest.pt", parts)
    if dist.get_rank() == 0:
        print(f"starting at step {done} with lr={lr:g}, weight_decay={weight_decay:g}")
    for step in range(done, steps):
        first = step * global_batch_size
        samples = [i % len(inputs) for i in range(first, first + global_batch_size)]
        train_step(model, optimizer, inputs, targets, samples)
        schedule.step()
        if (step + 1) % save_every == 0:
            save(folder / "latest.pt", parts, step + 1)

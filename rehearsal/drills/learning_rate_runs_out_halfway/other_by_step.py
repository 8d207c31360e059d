import os

import torch
import torch.distributed as dist


def rate_of(step, steps, warmup_steps, lr):
    """The rate of a step, from 0: no state, so there is nothing to restore."""
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    return lr * (steps - step) / (steps - warmup_steps)


def train(model, inputs, targets, *, folder, epochs, global_batch_size, micro_batch_size,
          warmup_steps, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    named = list(model.named_parameters())
    biases = [p for name, p in named if name.endswith("bias")]
    others = [p for name, p in named if not name.endswith("bias")]
    optimizer = torch.optim.SGD([{"params": others}, {"params": biases}], lr=lr, momentum=0.9)
    path, done = folder / "latest.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    batches = torch.arange(len(inputs)).split(global_batch_size)
    steps, rates = epochs * len(batches), []
    for step in range(done, steps):
        rate = rate_of(step, steps, warmup_steps, lr)
        for group, factor in zip(optimizer.param_groups, (1, 2)):
            group["lr"] = factor * rate
        batch = batches[step % len(batches)]
        optimizer.zero_grad()
        for samples in batch[rank::world_size].split(micro_batch_size):
            errors = model(inputs[samples]) - targets[samples]
            (errors.pow(2).sum() / len(batch)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        rates.append((step + 1, rate))
        if (step + 1) % checkpoint_every == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, folder / "next.pt")
            os.replace(folder / "next.pt", path)
    return rates

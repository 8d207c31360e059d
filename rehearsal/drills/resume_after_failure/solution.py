import os
from pathlib import Path

import torch
import torch.distributed as dist


def order_of(epoch, num_samples):
    """The samples of an epoch, in training order."""
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(num_samples, generator=generator).tolist()


def train_step(model, optimizer, inputs, targets, samples):
    """One optimizer step on ``samples``, on all ranks together."""
    mine = samples[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    ((model(inputs[mine]) - targets[mine]).pow(2).sum() / len(samples)).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def save(path, state):
    # Each rank has its own RNG state. The gather waits for all ranks: the step is complete.
    rng_states = [None] * dist.get_world_size()
    dist.all_gather_object(rng_states, torch.get_rng_state())
    if dist.get_rank() == 0:
        temporary = path.with_suffix(".tmp")
        torch.save(state | {"rng_states": rng_states}, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)  # the old state or the new one, never half of each


def train(model, inputs, targets, *, folder, epochs, global_batch_size, lr, save_every):
    """The run that may be killed at any moment and is then called again."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    path, done = Path(folder) / "latest.pt", 0
    if path.exists():
        state = torch.load(path)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        done = state["step"]
        torch.set_rng_state(state["rng_states"][dist.get_rank()])
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    # One integer is the position. It counts steps taken, not samples fetched.
    for step in range(done, epochs * steps_per_epoch):
        epoch, place = divmod(step, steps_per_epoch)
        first = place * global_batch_size
        samples = order_of(epoch, len(inputs))[first : first + global_batch_size]
        train_step(model, optimizer, inputs, targets, samples)
        schedule.step()
        if (step + 1) % save_every == 0 or step + 1 == epochs * steps_per_epoch:
            state = {name: part.state_dict() for name, part in parts.items()}
            save(path, state | {"step": step + 1})

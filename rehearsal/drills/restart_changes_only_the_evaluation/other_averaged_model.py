import os

import torch
import torch.distributed as dist
from torch.optim.swa_utils import AveragedModel


def average_of(model, decay):
    """torch's own average: it goes over parameters, of which a tied one is in the list once."""

    def follow(average, weight, num_averaged):
        return average.lerp(weight, 1 - min(decay, (1 + num_averaged) / (10 + num_averaged)))

    average = AveragedModel(model, avg_fn=follow)
    average.update_parameters(model)  # the first call copies: from here on, it counts updates
    return average


def newest(folder):
    found = sorted(folder.glob("step-*.pt"))
    return found[-1] if found else None


def train_step(model, optimizer, inputs, targets, size):
    optimizer.zero_grad()
    ((model(inputs) - targets).pow(2).sum() / size).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train(model, inputs, targets, held_out, *, folder, epochs, global_batch_size,
          checkpoint_every, evaluate_every, lr, decay):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    average = average_of(model, decay)
    parts = {"model": model, "optimizer": optimizer, "average": average}
    done, path = 0, newest(folder)
    if path:
        state = torch.load(path)
        done = state.pop("step")
        for name, part in parts.items():
            part.load_state_dict(state[name])
    batches = torch.arange(len(inputs)).split(global_batch_size)
    evaluations = []
    for step in range(done + 1, epochs * len(batches) + 1):
        batch = batches[(step - 1) % len(batches)]
        mine = batch[rank::world_size]
        train_step(model, optimizer, inputs[mine], targets[mine], len(batch))
        average.update_parameters(model)
        if step % evaluate_every == 0:
            with torch.no_grad():
                loss = (average.module(held_out[0]) - held_out[1]).pow(2).mean()
            evaluations.append((step, float(loss)))
        if step % checkpoint_every == 0 and rank == 0:
            torch.save({**{n: p.state_dict() for n, p in parts.items()}, "step": step},
                       folder / "new")
            os.replace(folder / "new", folder / f"step-{step:08d}.pt")
    return average.module.state_dict(), evaluations

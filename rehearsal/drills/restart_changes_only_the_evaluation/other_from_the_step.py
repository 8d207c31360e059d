import os

import torch
import torch.distributed as dist
from torch.func import functional_call


def train(model, inputs, targets, held_out, *, folder, epochs, global_batch_size,
          checkpoint_every, evaluate_every, lr, decay):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    path, step = folder / "latest.pt", 0
    if path.exists():
        step, weights, moments, average = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    evaluations = []
    for step in range(step, epochs * steps_per_epoch):
        first = step % steps_per_epoch * global_batch_size
        batch = range(first, min(first + global_batch_size, len(inputs)))
        mine = batch[rank::world_size]
        optimizer.zero_grad()
        errors = model(inputs[list(mine)]) - targets[list(mine)]
        (errors.pow(2).sum() / len(batch)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        # Out of place, so it doesn't matter which names share memory; and the decay follows
        # from the step, which is in the checkpoint anyway.
        done = step + 1
        keep = min(decay, (1 + done) / (10 + done))
        average = {
            name: keep * average[name] + (1 - keep) * value
            for name, value in model.state_dict().items()
        }
        if done % evaluate_every == 0:
            with torch.no_grad():
                outputs = functional_call(model, average, (held_out[0],), tie_weights=False)
                evaluations.append((done, (outputs - held_out[1]).square().mean().item()))
        if done % checkpoint_every == 0 and rank == 0:
            state = done, model.state_dict(), optimizer.state_dict(), average
            torch.save(state, folder / "next.pt")
            os.replace(folder / "next.pt", path)
    return average, evaluations

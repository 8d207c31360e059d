import os

import torch
import torch.distributed as dist


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Keeps per-rank counts; the file says for how many ranks they were made."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    run = {"epoch": 0, "per_rank": 0, "step": 0, "world_size": world_size}
    found = sorted(folder.glob("at-*.pt"))
    if found:
        state = torch.load(found[-1])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        run = state["run"]
        run["per_rank"] = run["per_rank"] * run["world_size"] // world_size
        run["world_size"] = world_size
    else:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    size = global_batch_size // world_size
    for epoch in range(run["epoch"], epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        most = -(-len(order) // world_size)
        for first in range(run["per_rank"], most, size):
            mine = order[rank::world_size][first : first + size]
            left = min(global_batch_size, len(order) - first * world_size)
            optimizer.zero_grad()
            (((model(inputs[mine]) - targets[mine]) ** 2).sum() / left).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            run.update(epoch=epoch, per_rank=first + size, step=run["step"] + 1)
            if rank == 0 and run["step"] % checkpoint_every == 0:
                state = {"run": run, "model": model.state_dict()}
                torch.save(state | {"optimizer": optimizer.state_dict()}, folder / "new")
                os.replace(folder / "new", folder / f"at-{run['step']:06d}.pt")
        run["per_rank"] = 0

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def identity():
    env = os.environ
    if "RANK" not in env:
        return 0, 0, 1
    return int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"])


def share_of(n, rank, world_size, seed, epoch):
    """This rank's samples of an epoch, of as many as every other rank has."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    order = torch.randperm(n, generator=generator)
    each = (n + world_size - 1) // world_size
    # Past the end of the order, the first samples come again.
    return order[torch.arange(rank * each, (rank + 1) * each) % n]


def train(model, inputs, targets, *, folder, devices, **settings):
    rank, local_rank, world_size = identity()
    device = devices[local_rank if len(devices) > 1 else 0]
    if world_size == 1:
        alone = model, model, inputs, targets, device, folder
        return guarded(rank, folder, fit, *alone, **settings)

    def joined():
        dist.init_process_group("gloo", init_method="env://")
        try:
            model.to(device)
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
            fit(ddp, model, inputs, targets, device, folder, rank, world_size, **settings)
        finally:
            dist.destroy_process_group()

    guarded(rank, folder, joined)


def guarded(rank, folder, function, *arguments, **settings):
    try:
        function(*arguments, **settings)
    except BaseException as error:
        path = folder / f"rank-{rank}.log"
        before = path.read_text() if path.exists() else ""
        path.write_text(before + repr(error) + "\n")
        raise


def fit(
    wrapped, model, inputs, targets, device, folder, rank=0, world_size=1,
    *, epochs, batch_size, lr, seed,
):
    model.to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=lr)
    for epoch in range(epochs):
        mine = share_of(len(inputs), rank, world_size, seed, epoch)
        summed = torch.zeros(())
        for at in range(0, len(mine), batch_size):
            batch = mine[at : at + batch_size]
            losses = ((wrapped(inputs[batch]) - targets[batch]) ** 2).sum(dim=1)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            summed += losses.sum().item()
        if world_size > 1:
            dist.reduce(summed, dst=0)
        if rank != 0:
            continue
        torch.save(model.state_dict(), folder / "model.pt")
        print("epoch", epoch, "loss", float(summed) / (len(mine) * world_size))

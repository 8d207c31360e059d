import json
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist


def share(order, first, size):
    """This rank's block of a step's samples, and the size of the step."""
    step = order[first : first + size]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return step[rank * len(step) // world_size : (rank + 1) * len(step) // world_size], len(
        step
    )


def train(model, inputs, targets, *, folder, epochs, global_batch_size, lr, save_every):
    """One folder per save: a file per rank, then a manifest once every file is written."""
    rank, folder = dist.get_rank(), Path(folder)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    epoch = batch = done = 0
    torch.manual_seed(100 + rank)
    # Rank 0 decides which complete save is the newest, and the others follow.
    found = [max((int(p.parent.name) for p in folder.glob("*/manifest.json")), default=None)]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        place = folder / str(found[0])
        state = torch.load(place / f"rank-{rank}.pt")
        manifest = json.loads((place / "manifest.json").read_text())
        epoch, batch, done = manifest["epoch"], manifest["batch"], found[0]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    while epoch < epochs:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(7 + epoch))
        for first in range(batch * global_batch_size, len(inputs), global_batch_size):
            for group in optimizer.param_groups:
                group["lr"] = lr / (1 + done)
            mine, size = share(order, first, global_batch_size)
            optimizer.zero_grad()
            errors = (model(inputs[mine]) - targets[mine]).pow(2)
            (errors.sum() / size).backward()
            used = [p for p in model.parameters() if p.grad is not None]
            flat = torch.cat([p.grad.flatten() for p in used])
            dist.all_reduce(flat)
            for p, part in zip(used, flat.split([p.numel() for p in used])):
                p.grad = part.view_as(p)
            optimizer.step()
            done += 1
            is_last = first + global_batch_size >= len(inputs)
            epoch, batch = (epoch + 1, 0) if is_last else (epoch, batch + 1)
            if done % save_every == 0 or epoch == epochs:
                publish(folder / str(done), model, optimizer, {"epoch": epoch, "batch": batch})


def publish(place, model, optimizer, manifest):
    rank = dist.get_rank()
    place.mkdir(exist_ok=True)  # a folder left by a kill has no manifest and is written again
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with open(place / f"rank-{rank}.pt", "wb") as file:
        torch.save(state | {"rng": torch.get_rng_state()}, file)
        file.flush()
        os.fsync(file.fileno())
    dist.barrier()  # every rank has written its file
    if rank == 0:
        (place / "manifest.tmp").write_text(json.dumps(manifest))
        os.replace(place / "manifest.tmp", place / "manifest.json")
    dist.barrier()

import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def newest(folder):
    """The newest readable state, or None. Only rank 0 looks; every rank gets it."""
    found = [None]
    if dist.get_rank() == 0:
        for path in sorted(Path(folder).glob("step-*.pickle"), reverse=True):
            try:
                found = [pickle.loads(path.read_bytes())]
                break
            except (EOFError, pickle.UnpicklingError):
                continue
    dist.broadcast_object_list(found, src=0)
    return found[0]


def train(model, inputs, targets, *, folder, epochs, global_batch_size, lr, save_every):
    """Order, learning rate and RNG seed are functions of the step, so none of them is saved."""
    rank, world_size, n = dist.get_rank(), dist.get_world_size(), len(inputs)
    folder = Path(folder) / "saves"
    folder.mkdir(exist_ok=True)  # on every rank, at every start
    state = newest(folder)
    if state:
        model.load_state_dict(state["model"])
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=lr)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    plan = [
        torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).split(
            global_batch_size
        )
        for epoch in range(epochs)
    ]
    plan = [samples for batches in plan for samples in batches]
    for step in range(state["step"] if state else 0, len(plan)):
        torch.manual_seed(step * world_size + rank)
        optimizer.param_groups[0]["lr"] = lr * (1 - step / len(plan))
        mine = plan[step][rank::world_size]
        optimizer.zero_grad()
        errors = (ddp(inputs[mine]) - targets[mine]).pow(2).sum()
        (errors * world_size / len(plan[step])).backward()
        optimizer.step()
        if rank == 0 and ((step + 1) % save_every == 0 or step + 1 == len(plan)):
            whole = {"step": step + 1, "model": model.state_dict()}
            whole["optimizer"] = optimizer.state_dict()
            # A torn file can't be unpickled: a pickle ends with a stop byte.
            path = Path(folder) / f"step-{step + 1:08d}.pickle"
            path.write_bytes(pickle.dumps(whole))

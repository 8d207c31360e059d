import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, shares, folder, *, lr, keep):
    """The step comes from a file's content, not from its name; rank 0 reads for all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    known = {}
    if dist.get_rank() == 0:
        known = {torch.load(path)["step"]: path for path in folder.glob("step-*.pt")}
    shared = [known.get(max(known, default=None))]
    dist.broadcast_object_list(shared, src=0)
    step = 0
    if shared[0]:
        state = torch.load(shared[0])
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for inputs, targets in shares(step):
        optimizer.zero_grad()
        (ddp(inputs) - targets).pow(2).sum(1).mean().backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            state = {"step": step, "model": model.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, folder / "new")
            known[step] = folder / f"step-{step:08d}.pt"
            os.rename(folder / "new", known[step])
            while len(known) > keep:
                known.pop(min(known)).unlink()

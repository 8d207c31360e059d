import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, shares, folder, *, lr, keep):
    """Rank 0 reads for all ranks; an old file goes once its successor is published."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    state = {"step": 0}
    names = sorted(folder.glob("step-*.pt"), key=number)
    if dist.get_rank() == 0 and names:
        state = torch.load(names[-1])
    shared = [state]
    dist.broadcast_object_list(shared, src=0)
    step = shared[0]["step"]
    if step:
        model.load_state_dict(shared[0]["model"])
        optimizer.load_state_dict(shared[0]["optimizer"])
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step, (inputs, targets) in enumerate(shares(step), start=step + 1):
        optimizer.zero_grad()
        (ddp(inputs) - targets).pow(2).sum(1).mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            part = folder / "part"
            torch.save({"step": step, **state}, part)
            os.rename(part, folder / f"step-{step}.pt")
            present = sorted(folder.glob("step-*.pt"), key=number, reverse=True)
            while len(present) > keep:
                present.pop().unlink()


def number(path):
    return int(path.name[len("step-") : -len(".pt")])

import os

import torch
import torch.distributed as dist


def train(model, shares, folder, *, lr, keep):
    """Resume from the newest checkpoint in folder; save after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step = load(model, optimizer, folder)
    for inputs, targets in shares(step):
        optimizer.zero_grad()
        (model(inputs) - targets).pow(2).sum(1).mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            save(model, optimizer, step, folder, keep)


def checkpoints(folder):
    """All step-N.pt files, newest last."""
    return sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.split("-")[1]))


def save(model, optimizer, step, folder, keep):
    """Publish by renaming, so that a file with this name is always complete."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "next.tmp")
    os.replace(folder / "next.tmp", folder / f"step-{step}.pt")
    # Delete only now that the successor is published.
    for old in checkpoints(folder)[:-keep]:
        old.unlink()


def load(model, optimizer, folder):
    """Restore the newest checkpoint, if any; return the number of completed steps."""
    found = checkpoints(folder)
    dist.barrier()  # every rank has looked before rank 0 writes
    if not found:
        return 0
    state = torch.load(found[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]

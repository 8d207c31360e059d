import os
import signal

import torch
import torch.distributed as dist


class StopRequest:
    """Set by SIGTERM; the loop checks it between two steps."""

    def __init__(self):
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, *_):
        self.is_set = True


def train(model, shares, folder, *, lr):
    """Resume from the checkpoint in folder. False if a signal stopped it before the end."""
    stop = StopRequest()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step = load(model, optimizer, folder)
    for inputs, targets in shares(step):
        optimizer.zero_grad()
        (model(inputs) - targets).pow(2).sum(1).mean().backward()
        average_gradients(model)
        optimizer.step()
        step += 1
        if stop.is_set:
            save(model, optimizer, step, folder)
            return False
    return True


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def save(model, optimizer, step, folder):
    """Rank 0 writes to a temporary file, then publishes it by renaming."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / "latest.tmp")
        os.replace(folder / "latest.tmp", folder / "latest.pt")


def load(model, optimizer, folder):
    """Restore the checkpoint, if there is one; return the number of completed steps."""
    if not (folder / "latest.pt").exists():
        return 0
    state = torch.load(folder / "latest.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]

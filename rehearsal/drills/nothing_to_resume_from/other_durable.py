import contextlib
import os
import re

import torch
import torch.distributed as dist


class Folder:
    """Checkpoints of one run. A file named step-N.pt is complete and on disk."""

    def __init__(self, path, keep):
        self.path, self.keep = path, keep

    def steps(self):
        names = (re.fullmatch(r"step-(\d+)\.pt", name) for name in os.listdir(self.path))
        return sorted(int(name[1]) for name in names if name)

    def file(self, step):
        return self.path / f"step-{step}.pt"

    def add(self, step, state):
        aside = self.path / f".step-{step}.part"
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, self.file(step))
        directory = os.open(self.path, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        for old in self.steps()[: -self.keep]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.file(old))


def train(model, shares, folder, *, lr, keep):
    store = Folder(folder, keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    newest = [max(store.steps(), default=0)]
    dist.broadcast_object_list(newest, src=0)
    step = newest[0]
    if step:
        weights, moments = torch.load(store.file(step))
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    dist.barrier()
    used = [model.inner, model.outer]
    for inputs, targets in shares(step):
        model.zero_grad()
        torch.mean((model(inputs) - targets).square().sum(1)).backward()
        for layer in used:
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(dist.get_world_size())
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            store.add(step, (model.state_dict(), optimizer.state_dict()))

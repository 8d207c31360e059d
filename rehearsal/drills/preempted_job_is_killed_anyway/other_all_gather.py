import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Preemption:
    """Every rank says whether it was told; all hear all."""

    told = False

    def __enter__(self):
        self.before = signal.signal(signal.SIGTERM, self.hear)
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGTERM, self.before)

    def hear(self, number, frame):
        self.told = True

    def ends_here(self):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.told)
        return any(everyone)


def train(model, shares, folder, *, lr):
    file = folder / "checkpoint"
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    done = 0
    if file.exists():
        done, weights, momenta = torch.load(file)
        model.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    with Preemption() as preemption:
        for done, (inputs, targets) in enumerate(shares(done), start=done + 1):
            optimizer.zero_grad()
            torch.mean((ddp(inputs) - targets).square().sum(1)).backward()
            optimizer.step()
            if preemption.ends_here():
                break
        else:
            return True
    if dist.get_rank() == 0:
        torch.save((done, model.state_dict(), optimizer.state_dict()), str(file) + ".new")
        os.replace(str(file) + ".new", file)
    dist.barrier()
    return False

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def write(state, path):
    torch.save(state, f"{path}.tmp")
    os.rename(f"{path}.tmp", path)


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """New memory for each snapshot, and a pool of one thread that writes them in order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    done = max((int(path.stem[5:]) for path in folder.glob("step-*.pt")), default=0)
    if done:
        state = torch.load(folder / f"step-{done}.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    pending = []
    with ThreadPoolExecutor(1) as pool:
        step = 0
        for _ in range(epochs):
            for first in range(0, len(inputs), global_batch_size):
                step += 1
                if step <= done:
                    continue
                last = min(first + global_batch_size, len(inputs))
                mine = slice(first + rank, last, world_size)
                optimizer.zero_grad()
                loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum()
                (loss * world_size / (last - first)).backward()
                optimizer.step()
                if rank == 0 and step % checkpoint_every == 0:
                    state = copy.deepcopy(
                        {
                            "step": step,
                            "model": model.state_dict(),
                            "optimizer": optimizer.state_dict(),
                        }
                    )
                    pending.append(pool.submit(write, state, folder / f"step-{step}.pt"))
    for future in pending:
        future.result()

import os
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def identity():
    """This process's rank, its local rank, and the world size."""
    env = os.environ
    return int(env.get("RANK", 0)), int(env.get("LOCAL_RANK", 0)), int(env.get("WORLD_SIZE", 1))


def train(model, inputs, targets, *, folder, devices, epochs, batch_size, lr, seed):
    """The same training, on every rank of the job."""
    rank, local_rank, world_size = identity()
    try:
        if world_size > 1:
            dist.init_process_group("gloo")
        # A launcher may show each process one device only: its own.
        device = devices[0] if len(devices) == 1 else devices[local_rank]
        model.to(device)
        ddp = DistributedDataParallel(model) if world_size > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        sampler = DistributedSampler(inputs, world_size, rank, seed=seed)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            total = torch.zeros(1)
            for batch in torch.tensor(list(sampler)).split(batch_size):
                x, y = inputs[batch].to(device), targets[batch].to(device)
                loss = (ddp(x) - y).pow(2).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()  # DDP averages the gradients here
                optimizer.step()
                total += loss.item() * len(batch)
            if world_size > 1:
                dist.all_reduce(total)  # every rank gets here; only the next lines are rank 0's
            if rank == 0:
                mean = total.item() / (world_size * len(sampler))
                print(f"epoch {epoch} loss {mean:.4f}")
                torch.save(model.state_dict(), folder / "model.pt")
    except Exception:
        with open(folder / f"rank-{rank}.log", "a") as log:
            traceback.print_exc(file=log)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

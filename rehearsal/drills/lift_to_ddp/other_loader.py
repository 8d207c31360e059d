import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def identity():
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return tuple(int(os.environ.get(name, default)) for name, default in names.items())


@contextmanager
def job(folder):
    """The process group for as long as the block runs; errors go to this rank's log."""
    rank, _, world_size = identity()
    try:
        if world_size > 1:
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
        yield
    except Exception as error:
        with (folder / f"rank-{rank}.log").open("a") as log:
            log.write(f"{type(error).__name__}: {error}\n")
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(model, inputs, targets, *, folder, devices, epochs, batch_size, lr, seed):
    rank, local_rank, world_size = identity()
    is_main = rank == 0
    with job(folder):
        device = devices[local_rank] if len(devices) > 1 else devices[0]
        model = model.to(device)
        wrapped = DDP(model) if world_size > 1 else model
        dataset = TensorDataset(inputs, targets)
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=seed)
        loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=lr)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            losses = []
            for x, y in loader:
                loss = (wrapped(x.to(device)) - y.to(device)).pow(2).sum(1)
                wrapped.zero_grad()
                loss.mean().backward()
                optimizer.step()
                losses += loss.tolist()
            everyone = [losses]
            if world_size > 1:
                everyone = [None] * world_size
                dist.all_gather_object(everyone, losses)
            if is_main:
                flat = [loss for own in everyone for loss in own]
                print(f"epoch {epoch} loss {sum(flat) / len(flat):.4f}")
                state = {k.removeprefix("module."): v for k, v in wrapped.state_dict().items()}
                torch.save(state, folder / "model.tmp")
                os.replace(folder / "model.tmp", folder / "model.pt")

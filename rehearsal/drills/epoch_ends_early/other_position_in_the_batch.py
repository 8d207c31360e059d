import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    """A rank's samples of one epoch, from ``first`` on; each comes with its position."""

    def __init__(self, dataset, epoch, first, rank, world_size):
        generator = torch.Generator().manual_seed(77 * (epoch + 1))
        self.order = torch.randperm(len(dataset), generator=generator).tolist()[
            rank::world_size
        ]
        self.dataset, self.first = dataset, first

    def __len__(self):
        return len(self.order) - self.first

    def __getitem__(self, offset):
        inputs, targets = self.dataset[self.order[self.first + offset]]
        return inputs, targets, self.first + offset + 1


def train(model, dataset, *, folder, epochs, batch_size, checkpoint_every, num_workers, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    run = {"epoch": 0, "position": 0, "step": 0}
    found = sorted(folder.glob("step-*.pt"))
    if found:
        state = torch.load(found[-1])
        run = state["run"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    while run["epoch"] < epochs:
        shard = Shard(dataset, run["epoch"], run["position"], rank, world_size)
        loader = DataLoader(shard, batch_size, num_workers=num_workers) if len(shard) else ()
        for inputs, targets, positions in loader:
            size = torch.tensor(len(inputs))
            dist.all_reduce(size)
            optimizer.zero_grad()
            # DDP averages over ranks, but we want the sum.
            ((ddp(inputs) - targets).pow(2).sum() * world_size / size).backward()
            optimizer.step()
            run["step"] += 1
            # The batch itself says which position training has reached.
            run["position"] = int(positions[-1])
            if rank == 0 and run["step"] % checkpoint_every == 0:
                state = {"run": run, "model": model.state_dict()}
                temporary = folder / "being-written"
                torch.save({**state, "optimizer": optimizer.state_dict()}, temporary)
                os.rename(temporary, folder / f"step-{run['step']:08d}.pt")
        run["epoch"], run["position"] = run["epoch"] + 1, 0

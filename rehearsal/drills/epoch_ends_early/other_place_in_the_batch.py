import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    """A rank's samples of one epoch from ``first`` on; each knows its place."""

    def __init__(self, dataset, epoch, first, rank, world_size):
        generator = torch.Generator().manual_seed(77 * (epoch + 1))
        self.order = torch.randperm(len(dataset), generator=generator).tolist()[
            rank::world_size
        ]
        self.dataset, self.first = dataset, first

    def __len__(self):
        return len(self.order) - self.first

    def __getitem__(self, place):
        inputs, targets = self.dataset[self.order[self.first + place]]
        return inputs, targets, self.first + place + 1


def train(model, dataset, *, folder, epochs, batch_size, checkpoint_every, num_workers, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    run = {"epoch": 0, "place": 0, "step": 0}
    found = sorted(folder.glob("step-*.pt"))
    if found:
        state = torch.load(found[-1])
        run = state["run"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    while run["epoch"] < epochs:
        shard = Shard(dataset, run["epoch"], run["place"], rank, world_size)
        loader = DataLoader(shard, batch_size, num_workers=num_workers) if len(shard) else ()
        for inputs, targets, places in loader:
            size = torch.tensor(len(inputs))
            dist.all_reduce(size)
            optimizer.zero_grad()
            # DDP divides by the number of ranks.
            ((ddp(inputs) - targets).pow(2).sum() * world_size / size).backward()
            optimizer.step()
            run["step"] += 1
            # The batch itself says how far training has come.
            run["place"] = int(places[-1])
            if rank == 0 and run["step"] % checkpoint_every == 0:
                state = {"run": run, "model": model.state_dict()}
                temporary = folder / "being-written"
                torch.save({**state, "optimizer": optimizer.state_dict()}, temporary)
                os.rename(temporary, folder / f"step-{run['step']:08d}.pt")
        run["epoch"], run["place"] = run["epoch"] + 1, 0

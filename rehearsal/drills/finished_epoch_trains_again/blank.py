import os

import torch
import torch.distributed as dist


class Trainer:
    """A model, its optimizer and the run's position."""

    def __init__(self, model, inputs, targets, folder, global_batch_size, lr):
        self.model, self.inputs, self.targets = model, inputs, targets
        self.path, self.global_batch_size = folder / "checkpoint.pt", global_batch_size
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.epoch, self.batch, self.step = 0, 0, 0
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)

    def save(self):
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                     "epoch": self.epoch, "batch": self.batch, "step": self.step}
            torch.save(state, f"{self.path}.tmp")
            os.replace(f"{self.path}.tmp", self.path)

    def restore(self):
        if not self.path.exists():
            return
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]

    def batches(self, epoch):
        generator = torch.Generator().manual_seed(500 + epoch)
        order = torch.randperm(len(self.inputs), generator=generator)
        return order.split(self.global_batch_size)

    def train_step(self, batch):
        mine = batch[self.rank :: self.world_size]
        self.optimizer.zero_grad()
        errors = (self.model(self.inputs[mine]) - self.targets[mine]).pow(2).sum()
        (errors / len(batch)).backward()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        self.optimizer.step()

    def fit(self, epochs, checkpoint_every):
        for epoch in range(self.epoch, epochs):
            self.epoch = epoch
            for batch in self.batches(epoch)[self.batch :]:
                self.train_step(batch)
                self.step += 1
                self.batch += 1
                if self.step % checkpoint_every == 0:
                    self.save()
            self.batch = 0
            self.save()


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    trainer = Trainer(model, inputs, targets, folder, global_batch_size, lr)
    trainer.restore()
    trainer.fit(epochs, checkpoint_every)

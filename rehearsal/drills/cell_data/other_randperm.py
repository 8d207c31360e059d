import hashlib
from dataclasses import dataclass

import torch


@dataclass
class StepSchedule:
    num_samples: int
    global_batch_size: int
    max_epochs: int

    def __post_init__(self):
        whole, rest = divmod(self.num_samples, self.global_batch_size)
        self.steps_per_epoch = whole + (rest > 0)
        self.total_steps = self.steps_per_epoch * self.max_epochs


class ResumeAwareDistributedSampler:
    """One permutation per epoch, kept while it is needed; contiguous shares."""

    def __init__(self, schedule, cfg, rank, world_size):
        self.schedule, self.cfg, self.rank, self.world_size = schedule, cfg, rank, world_size
        self.done = 0
        largest_share = (schedule.global_batch_size + world_size - 1) // world_size
        batch = cfg.micro_batch_size
        self.micro_steps = (largest_share + batch - 1) // batch
        self.kept_epoch, self.kept = None, None

    def order(self, epoch):
        if self.kept_epoch != epoch:
            text = f"seed {self.cfg.seed} epoch {epoch}"
            word = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
            generator = torch.Generator().manual_seed(word)
            self.kept = torch.randperm(self.schedule.num_samples, generator=generator)
            self.kept_epoch = epoch
        return self.kept

    def __iter__(self):
        for number in range(self.done, self.schedule.total_steps):
            epoch, step = divmod(number, self.schedule.steps_per_epoch)
            samples = self.order(epoch).split(self.schedule.global_batch_size)[step]
            share = samples.tensor_split(self.world_size)[self.rank]
            for micro_step in range(self.micro_steps):
                size = self.cfg.micro_batch_size
                part = share[micro_step * size : (micro_step + 1) * size]
                yield [(epoch, sample) for sample in part.tolist()]

    def __len__(self):
        return self.micro_steps * (self.schedule.total_steps - self.done)

    def commit(self):
        self.done = self.done + 1

    def state_dict(self):
        return dict(position=self.done)

    def load_state_dict(self, state):
        self.done = int(state["position"])

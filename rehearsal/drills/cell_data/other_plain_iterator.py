import hashlib
from math import ceil


class StepSchedule:
    def __init__(self, num_samples, global_batch_size, max_epochs):
        self.num_samples, self.global_batch_size = num_samples, global_batch_size
        self.steps_per_epoch = ceil(num_samples / global_batch_size)
        self.total_steps = max_epochs * self.steps_per_epoch


def order_of(num_samples, seed, epoch):
    """All samples, sorted by a hash of seed, epoch and sample."""

    def key(sample):
        return hashlib.blake2b(repr((seed, epoch, sample)).encode()).digest()

    return sorted(range(num_samples), key=key)


class Batches:
    """An iterator with its own position, because the sampler's may move in the meantime."""

    def __init__(self, sampler):
        self.sampler, self.step, self.waiting = sampler, sampler.position, []

    def __iter__(self):
        return self

    def __next__(self):
        if not self.waiting:
            if self.step >= self.sampler.schedule.total_steps:
                raise StopIteration
            self.waiting = self.sampler.cut(self.step)
            self.step += 1
        return self.waiting.pop(0)


class ResumeAwareDistributedSampler:
    def __init__(self, schedule, cfg, rank, world_size):
        self.schedule, self.rank, self.world_size = schedule, rank, world_size
        self.seed, self.size = cfg.seed, cfg.micro_batch_size
        self.micro_steps = ceil(ceil(schedule.global_batch_size / world_size) / self.size)
        self.position = 0

    def cut(self, step):
        """Dealt like cards: the first sample of the step to the first micro-batch of rank 0."""
        epoch = step // self.schedule.steps_per_epoch
        start = step % self.schedule.steps_per_epoch * self.schedule.global_batch_size
        order = order_of(self.schedule.num_samples, self.seed, epoch)
        batches = [[] for _ in range(self.micro_steps)]
        for slot in range(start, min(start + self.schedule.global_batch_size, len(order))):
            turn, rank = divmod(slot - start, self.world_size)
            if rank == self.rank:
                batches[turn % self.micro_steps].append((epoch, order[slot]))
        return batches

    def __iter__(self):
        return Batches(self)

    def __len__(self):
        return (self.schedule.total_steps - self.position) * self.micro_steps

    def commit(self):
        self.position += 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

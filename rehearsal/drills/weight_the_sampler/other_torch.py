import torch


class WeightedSampler:
    def __init__(
        self, weights, *, num_draws, epochs, global_batch_size, seed, rank, world_size
    ):
        self.weights = weights
        self.num_draws, self.global_batch_size = num_draws, global_batch_size
        self.seed, self.mine = seed, slice(rank, None, world_size)
        self.epochs = epochs
        self.epoch, self.step = 0, 0

    def batches(self, epoch):
        """The global batches of an epoch: the same on every rank, whatever their number."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        drawn = torch.multinomial(
            self.weights, self.num_draws, replacement=True, generator=generator
        )
        return drawn.split(self.global_batch_size)

    def __iter__(self):
        step = self.step
        for epoch in range(self.epoch, self.epochs):
            for batch in self.batches(epoch)[step:]:
                yield batch[self.mine].tolist()
            step = 0

    def commit(self):
        self.step += 1
        if self.step * self.global_batch_size >= self.num_draws:
            self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state):
        self.epoch, self.step = state["epoch"], state["step"]

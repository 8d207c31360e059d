import random
from bisect import bisect_right
from itertools import accumulate


class WeightedSampler:
    """Each slot draws for itself, so no step needs those before it."""

    def __init__(
        self, weights, *, num_draws, epochs, global_batch_size, seed, rank, world_size
    ):
        self.sums = list(accumulate(weights.tolist()))
        self.num_draws, self.size, self.seed = num_draws, global_batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.steps = [
            (epoch, first)
            for epoch in range(epochs)
            for first in range(0, num_draws, global_batch_size)
        ]
        self.done = 0

    def sample(self, epoch, slot):
        # A string, which random hashes the same way in every process.
        point = random.Random(f"{self.seed} {epoch} {slot}").random() * self.sums[-1]
        return bisect_right(self.sums, point)

    def __iter__(self):
        for epoch, first in self.steps[self.done :]:
            last = min(first + self.size, self.num_draws)
            mine = range(first + self.rank, last, self.world_size)
            yield [self.sample(epoch, slot) for slot in mine]

    def commit(self):
        self.done = self.done + 1

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]

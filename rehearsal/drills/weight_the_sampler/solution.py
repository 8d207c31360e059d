import numpy as np


class WeightedSampler:
    """This rank's samples of each step, drawn by weight."""

    def __init__(
        self, weights, *, num_draws, epochs, global_batch_size, seed, rank, world_size
    ):
        weights = np.asarray(weights, dtype=np.float64)
        self.chances = weights / weights.sum()
        self.num_draws, self.epochs, self.batch = num_draws, epochs, global_batch_size
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.steps = -(-num_draws // global_batch_size)  # of an epoch
        self.position = 0  # steps trained since the run began

    def draw(self, epoch):
        # The pair is the key: seed + epoch would give two seeds the same epochs.
        rng = np.random.default_rng((self.seed, epoch))
        return rng.choice(len(self.chances), size=self.num_draws, p=self.chances)

    def __iter__(self):
        drawn, last = None, self.epochs * self.steps
        for position in range(self.position, last):
            epoch, step = divmod(position, self.steps)
            if drawn is None or step == 0:
                drawn = self.draw(epoch)
            slots = drawn[step * self.batch : (step + 1) * self.batch]
            yield slots[self.rank :: self.world_size].tolist()

    def commit(self):
        self.position += 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

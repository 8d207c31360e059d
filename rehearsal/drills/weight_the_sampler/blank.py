import numpy as np


class WeightedSampler:
    """This rank's samples of each step, drawn by weight."""

    def __init__(
        self, weights, *, num_draws, epochs, global_batch_size, seed, rank, world_size
    ):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError

    def commit(self):
        raise NotImplementedError

    def state_dict(self):
        raise NotImplementedError

    def load_state_dict(self, state):
        raise NotImplementedError

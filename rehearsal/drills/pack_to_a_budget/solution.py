import numpy as np


class PackedRows:
    """This rank's rows of whole sequences, in each step that is left."""

    def __init__(
        self, lengths, *, budget, rows_per_step, epochs, seed, rank, world_size, position=0
    ):
        self.rows, room = [], []
        for item in np.random.default_rng(seed).permutation(len(lengths)).tolist():
            if lengths[item] > budget:
                raise ValueError(f"sequence {item}: {lengths[item]} tokens, budget {budget}")
            # First fit: a row is opened only if no other one has room.
            at = next((at for at, left in enumerate(room) if left >= lengths[item]), len(room))
            if at == len(room):
                self.rows.append([])
                room.append(budget)
            self.rows[at].append(item)
            room[at] -= lengths[item]
        self.size, self.epochs, self.seed = rows_per_step, epochs, seed
        self.mine = slice(rank, None, world_size)
        self.position = position  # steps trained since the run began

    def __iter__(self):
        steps = -(-len(self.rows) // self.size)  # of an epoch
        for position in range(self.position, self.epochs * steps):
            epoch, step = divmod(position, steps)
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows))
            chosen = order[step * self.size : (step + 1) * self.size]
            yield [self.rows[row] for row in chosen[self.mine]]

    def commit(self):
        self.position += 1


def pack(sequences, budget, pad_id):
    """Tokens, segment ids and positions of one row."""
    tokens = np.full(budget, pad_id)
    segments, positions = np.zeros((2, budget), dtype=np.int64)
    start = 0
    for segment, sequence in enumerate(sequences, start=1):
        own = slice(start, start := start + len(sequence))
        tokens[own], segments[own] = sequence, segment
        positions[own] = np.arange(len(sequence))
    return tokens, segments, positions

import random

import numpy as np


def rows_of(lengths, budget, seed, epoch):
    """Packed anew in each epoch, so other sequences meet; the number of rows may differ."""
    rng = random.Random(f"{seed} {epoch}")
    order = rng.sample(range(len(lengths)), len(lengths))
    rows = []
    for item in sorted(order, key=lambda item: -lengths[item]):
        fitting = [row for row in rows if row[0] >= lengths[item]]
        row = min(fitting, key=lambda row: row[0], default=None)
        if row is None:
            rows.append(row := [budget, []])
        row[0] -= lengths[item]
        row[1].append(item)
    rng.shuffle(rows)
    return [items for _, items in rows]


class PackedRows:
    def __init__(
        self, lengths, *, budget, rows_per_step, epochs, seed, rank, world_size, position=0
    ):
        longest = max(range(len(lengths)), key=lambda item: lengths[item])
        if budget < lengths[longest]:
            raise ValueError(f"a row of {budget} tokens can't hold sequence {longest}")
        self.steps = []
        for epoch in range(epochs):
            rows = rows_of(lengths, budget, seed, epoch)
            for first in range(0, len(rows), rows_per_step):
                step = rows[first : first + rows_per_step]
                self.steps.append(step[rank::world_size])
        self.position = position

    def __iter__(self):
        return iter(self.steps[self.position :])

    def commit(self):
        self.position = self.position + 1


def pack(sequences, budget, pad_id):
    sizes = [len(sequence) for sequence in sequences]
    padding = [0] * (budget - sum(sizes))
    tokens = [token for sequence in sequences for token in sequence.tolist()]
    segments = [at + 1 for at, size in enumerate(sizes) for _ in range(size)]
    positions = [position for size in sizes for position in range(size)]
    tokens += [pad_id] * len(padding)
    return np.array(tokens), np.array(segments + padding), np.array(positions + padding)

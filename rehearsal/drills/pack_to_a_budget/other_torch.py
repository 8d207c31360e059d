import numpy as np
import torch


class PackedRows:
    def __init__(
        self, lengths, *, budget, rows_per_step, epochs, seed, rank, world_size, position=0
    ):
        sizes = torch.tensor(lengths)
        for item in (sizes > budget).nonzero().flatten().tolist():
            raise ValueError(f"lengths[{item}] is {lengths[item]}, above the budget")
        self.rows = self.packed(sizes, budget)
        self.rows_per_step, self.epochs, self.seed = rows_per_step, epochs, seed
        self.rank, self.world_size, self.position = rank, world_size, position

    def packed(self, sizes, budget):
        """Worst fit: the longest goes first, into the row with the most room."""
        room = torch.full((len(sizes),), budget)
        rows = [[] for _ in sizes]
        used = 0
        for item in sizes.argsort(descending=True, stable=True).tolist():
            at = int(room[:used].argmax()) if used else 0
            if used == 0 or room[at] < sizes[item]:
                at, used = used, used + 1
            rows[at].append(item)
            room[at] -= sizes[item]
        return rows[:used]

    def steps(self):
        for epoch in range(self.epochs):
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
            order = torch.randperm(len(self.rows), generator=generator)
            yield from order.split(self.rows_per_step)

    def __iter__(self):
        for step in list(self.steps())[self.position :]:
            mine = step[self.rank :: self.world_size].tolist()
            yield [self.rows[row] for row in mine]

    def commit(self):
        self.position += 1


def pack(sequences, budget, pad_id):
    row = np.zeros((3, budget), dtype=np.int64)
    row[0] = pad_id
    sizes = [len(sequence) for sequence in sequences]
    used = sum(sizes)
    row[0, :used] = np.concatenate(sequences)
    row[1, :used] = np.repeat(np.arange(len(sizes)), sizes) + 1
    starts = np.cumsum(sizes) - sizes
    row[2, :used] = np.arange(used) - np.repeat(starts, sizes)
    return tuple(row)

import random

import torch
from torch.nn.utils.rnn import pad_sequence


def steps_of(lengths, bounds, size, rng):
    """One pass in random order: a bucket that is full becomes a step."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    waiting = {bound: [] for bound in bounds}
    for item in order:
        bound = min(bound for bound in bounds if bound >= lengths[item])
        waiting[bound].append(item)
        if len(waiting[bound]) == size:
            yield waiting[bound]
            waiting[bound] = []
    yield from filter(None, waiting.values())


def batches(lengths, *, bounds, global_batch_size, seed, epoch, rank, world_size):
    too_long = [item for item, length in enumerate(lengths) if length > max(bounds)]
    if too_long:
        raise ValueError(f"too long for the last bucket: sequences {too_long}")
    rng = random.Random(f"{seed} {epoch}")
    mine = []
    for step in steps_of(lengths, bounds, global_batch_size, rng):
        step.sort(key=lengths.__getitem__, reverse=True)
        mine.append(step[rank::world_size])
    return mine


def collate(sequences, pad_id):
    if not sequences:
        return torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, 0, dtype=torch.bool)
    sizes = torch.tensor([len(sequence) for sequence in sequences])
    tokens = pad_sequence([s.long() for s in sequences], True, pad_id)
    return tokens, torch.arange(tokens.shape[1]) < sizes[:, None]

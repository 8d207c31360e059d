from bisect import bisect_left

import numpy as np
import torch


def batches(lengths, *, bounds, global_batch_size, seed, epoch, rank, world_size):
    """This rank's sequences in each step of an epoch."""
    buckets = [[] for _ in bounds]
    for item, length in enumerate(lengths):
        if length > bounds[-1]:
            raise ValueError(f"sequence {item} has {length} tokens; at most {bounds[-1]} fit")
        buckets[bisect_left(bounds, length)].append(item)
    rng = np.random.default_rng((seed, epoch))
    steps = []
    for bucket in buckets:
        rng.shuffle(bucket)
        for first in range(0, len(bucket), global_batch_size):
            step = bucket[first : first + global_batch_size]
            steps.append(sorted(step, key=lambda item: lengths[item]))
    rng.shuffle(steps)
    # The steps exist before the ranks do; sorted, they deal neighbors to different ranks.
    return [step[rank::world_size] for step in steps]


def collate(sequences, pad_id):
    """Tokens and mask, padded to the longest."""
    width = max((len(sequence) for sequence in sequences), default=0)
    tokens = torch.full((len(sequences), width), pad_id)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return tokens, mask

import numpy as np
import torch
import torch.distributed as dist


def gathered(rows, counts):
    """The rows of all ranks. The shorter ones are filled up, because a gather is even."""
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return np.concatenate([part[:n].numpy() for part, n in zip(parts, counts)])


def mean_ranks(scores):
    """Each score's place in the order, from 1; equal scores share the mean of their places."""
    _, groups, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[groups]


def score_tasks(ids, scores, labels):
    counts = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor(len(ids)))
    counts = [int(n) for n in counts]
    samples, table = gathered(ids, counts), gathered(torch.cat([scores, labels], 1), counts)
    _, first = np.unique(samples, return_index=True)
    found = {}
    for task in range(scores.shape[1]):
        score, label = table[first, task], table[first, scores.shape[1] + task]
        score, label = score[np.isfinite(label)], label[np.isfinite(label)]
        num_positive = int(label.sum())
        num_negative = len(label) - num_positive
        if num_positive * num_negative == 0:
            continue
        over = mean_ranks(score)[label == 1].sum() - num_positive * (num_positive + 1) / 2
        found[task] = float(over / (num_positive * num_negative))
    undefined = sorted(set(range(scores.shape[1])) - set(found))
    median = float(np.median([*found.values()])) if found else None
    return {"aurocs": found, "undefined": undefined, "median": median}

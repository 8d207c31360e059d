import statistics

import torch
import torch.distributed as dist


def auroc(positives, negatives):
    """The share of pairs in which the positive scores higher; a tie is half a pair."""
    ordered = negatives.sort().values
    below = torch.searchsorted(ordered, positives)  # negatives that score lower, ...
    up_to = torch.searchsorted(ordered, positives, right=True)  # ... and those that tie
    return (below + up_to).sum().item() / (2 * len(positives) * len(negatives))


def score_tasks(ids, scores, labels):
    """Each task's AUROC over the rows of all ranks, the undefined tasks, and the median."""
    shards = [None] * dist.get_world_size()
    # Objects may differ in size. Every rank gets here, with or without rows.
    dist.all_gather_object(shards, (ids, scores, labels))
    ids, scores, labels = map(torch.cat, zip(*shards))
    row_of = {sample: row for row, sample in enumerate(ids.tolist())}  # each sample once
    rows = list(row_of.values())
    aurocs, undefined = {}, []
    for task in range(labels.shape[1]):
        label, score = labels[rows, task], scores[rows, task]
        positives, negatives = score[label == 1], score[label == 0]
        if len(positives) and len(negatives):
            aurocs[task] = auroc(positives, negatives)
        else:
            undefined.append(task)
    median = statistics.median(aurocs.values()) if aurocs else None
    return {"aurocs": aurocs, "undefined": undefined, "median": median}

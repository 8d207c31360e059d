import statistics

import torch
import torch.distributed as dist


def score_tasks(ids, scores, labels):
    own = {
        sample: list(zip(score, label))
        for sample, score, label in zip(ids.tolist(), scores.tolist(), labels.tolist())
    }
    is_main = dist.get_rank() == 0
    everyone = [None] * dist.get_world_size() if is_main else None
    dist.gather_object(own, everyone, dst=0)
    result = [None]
    if is_main:
        merged = {}
        for samples in everyone:
            merged |= samples
        result = [report(list(merged.values()), labels.shape[1])]
    dist.broadcast_object_list(result, src=0)
    return result[0]


def report(samples, num_tasks):
    aurocs = {}
    for task in range(num_tasks):
        pairs = [sample[task] for sample in samples]
        positives = torch.tensor([score for score, label in pairs if label == 1.0])
        negatives = torch.tensor([score for score, label in pairs if label == 0.0])
        # Half of what is above minus below, and half of all: a tie is in the middle.
        signs = (positives[:, None] - negatives[None, :]).sign()
        if signs.numel():
            aurocs[task] = (signs.double().mean().item() + 1) / 2
    return {
        "aurocs": aurocs,
        "undefined": [task for task in range(num_tasks) if task not in aurocs],
        "median": statistics.median(aurocs.values()) if aurocs else None,
    }

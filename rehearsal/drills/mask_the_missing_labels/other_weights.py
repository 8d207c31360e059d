import torch
import torch.distributed as dist
import torch.nn.functional as F


def label_weights(targets):
    """What each label counts in the step's loss: 0 if it's missing. (B, T)"""
    has_label = targets.isfinite()
    counts = torch.zeros(dist.get_world_size(), targets.shape[1])
    counts[dist.get_rank()] = has_label.sum(dim=0)
    dist.all_reduce(counts)
    per_task = counts.sum(dim=0)
    tasks = max(1, int(per_task.count_nonzero()))
    return has_label / per_task.clamp(min=1) / tasks


def train_step(model, optimizer, inputs, targets, pos_weight):
    weights = label_weights(targets)
    loss = F.binary_cross_entropy_with_logits(
        model(inputs),
        targets.nan_to_num(0.0),
        weight=weights,
        pos_weight=pos_weight,
        reduction="sum",
    )
    optimizer.zero_grad()
    (dist.get_world_size() * loss).backward()
    optimizer.step()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, loss.item())
    return sum(parts)

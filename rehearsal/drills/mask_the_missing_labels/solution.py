import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_step(model, optimizer, inputs, targets, pos_weight):
    """One optimizer step over all ranks; returns its loss."""
    is_label = ~targets.isnan()
    counts = is_label.sum(0).float()  # (T,) on this rank
    dist.all_reduce(counts)  # on all ranks; one without labels takes part
    # NaN has to go before the loss: backward would multiply where's zero by its derivative.
    labels = torch.where(is_label, targets, 0.0)
    losses = F.binary_cross_entropy_with_logits(
        model(inputs), labels, pos_weight=pos_weight, reduction="none"
    )
    sums = torch.where(is_label, losses, 0.0).sum(0)
    num_tasks = (counts > 0).sum().clamp(min=1)
    loss = (sums / counts.clamp(min=1)).sum() / num_tasks  # this rank's part
    optimizer.zero_grad()
    (loss * dist.get_world_size()).backward()  # DDP averages, and we want the sum
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()

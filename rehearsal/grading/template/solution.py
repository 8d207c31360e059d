import torch
import torch.distributed as dist


def mean_over_ranks(value):
    """The mean of every rank's ``value``, a float, on every rank."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()

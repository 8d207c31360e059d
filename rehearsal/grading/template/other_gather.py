import torch
import torch.distributed as dist


def mean_over_ranks(value):
    """The mean of every rank's ``value``, a float, on every rank."""
    values = torch.empty(dist.get_world_size(), dtype=torch.float64)
    dist.all_gather_into_tensor(values, torch.tensor([value], dtype=torch.float64))
    return values.mean().item()

import torch
import torch.distributed as dist


def broken_symmetries(model, features, positions, edge_index, batch):
    """The names of the symmetries that the model breaks on any rank's batch."""
    raise NotImplementedError

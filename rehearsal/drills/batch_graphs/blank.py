import torch


def collate(graphs, like):
    """One graph of many; an empty list has the widths and types of ``like``."""
    raise NotImplementedError


def batches_of(order, num_nodes, num_edges, *, max_nodes, max_edges, rank, world_size):
    """The graphs that this rank trains in each step of an epoch: a list of lists of ids."""
    raise NotImplementedError

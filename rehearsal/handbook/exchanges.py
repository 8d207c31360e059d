"""The collectives as functions: a tensor in, a new tensor out, so that autograd can use them.

torch.distributed writes into tensors that the caller allocates. These allocate, and they use
the default group. Every rank of it must call the same one, in the same order.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor


def same(tensor: Tensor) -> Tensor:
    """The tensor itself, without any communication."""
    return tensor.view_as(tensor)


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over all ranks, on every rank."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def all_gather(tensor: Tensor) -> Tensor:
    """All ranks' tensors, concatenated along the first dimension, on every rank."""
    world_size = dist.get_world_size()
    gathered = tensor.new_empty(world_size * len(tensor), *tensor.shape[1:])
    dist.all_gather_into_tensor(gathered, tensor.contiguous())
    return gathered


def reduce_scatter(tensor: Tensor) -> Tensor:
    """The sum over all ranks, of which this rank keeps its part of the first dimension."""
    mine = tensor.new_empty(len(tensor) // dist.get_world_size(), *tensor.shape[1:])
    dist.reduce_scatter_tensor(mine, tensor.contiguous())
    return mine


def all_to_all(
    tensor: Tensor, give: list[int] | None = None, take: list[int] | None = None
) -> Tensor:
    """Row ranges to each rank, row ranges from each rank.

    Args:
        give: how many rows go to each rank; equal shares if None.
        take: how many come from each rank.
    """
    rows = len(tensor) if take is None else sum(take)
    arrived = tensor.new_empty(rows, *tensor.shape[1:])
    dist.all_to_all_single(arrived, tensor.contiguous(), take, give)
    return arrived


def shift(tensor: Tensor, by: int) -> Tensor:
    """Send the tensor ``by`` places along the ring; returns what arrives from behind."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor.contiguous(), (rank + by) % world_size)
    dist.recv(arrived, (rank - by) % world_size)
    assert sending is not None  # this rank is in the group
    sending.wait()
    return arrived


def to_next(tensor: Tensor) -> Tensor:
    """Hand the tensor to the next rank in the ring, and take the previous one's."""
    return shift(tensor, 1)


def to_previous(tensor: Tensor) -> Tensor:
    """Hand the tensor to the previous rank in the ring, and take the next one's."""
    return shift(tensor, -1)


def receive(like: Tensor, source: int) -> Tensor:
    """What the rank ``source`` sends: a tensor of the shape and type of ``like``."""
    arrived = torch.empty_like(like)
    dist.recv(arrived, source)
    return arrived


def farthest_apart(*pairs: tuple[Tensor | None, Tensor | None]) -> float:
    """The largest difference between any two elements that should be equal; infinite for a NaN.

    Raises:
        ValueError: if a pair has other shapes, or lacks a tensor.
    """
    largest = 0.0
    for ours, theirs in pairs:
        if ours is None or theirs is None or ours.shape != theirs.shape:
            shapes = [None if each is None else tuple(each.shape) for each in (ours, theirs)]
            raise ValueError(
                f"{shapes[0]} and {shapes[1]} are the shapes of two tensors that should be "
                "equal, so there is nothing to compare. Cut both the same way."
            )
        gap = (ours - theirs).detach().abs().max().item()
        largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest

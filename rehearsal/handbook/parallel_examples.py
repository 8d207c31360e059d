"""The small model that chapter 17 trains under each scheme, and what a rank holds of it.

S  rows of the sequence    D  width
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

WIDTH, CLASSES, NUM_BLOCKS, GLOBAL_BATCH, SEQUENCE = 64, 8, 4, 24, 32


def make_model() -> nn.Sequential:
    """Four blocks of two linear layers, and a head: 132,872 parameters, equal on all ranks."""
    torch.manual_seed(17)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(NUM_BLOCKS)
    ]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """The step's 24 samples, whatever the number of ranks: inputs (24, D), targets (24,)."""
    inputs = torch.randn(GLOBAL_BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return inputs, inputs[:, :CLASSES].argmax(1)


def loss_of(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    """The mean loss over this rank's share of the step's batch; the shares are equal."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, targets = (part[rank::world_size] for part in batch_of(step))
    return F.cross_entropy(model(inputs).float(), targets)


def mlp() -> list[Tensor]:
    """Input (S, D), scale of the norm (D,), up (4D, D), down (D, 4D); equal on all ranks."""
    torch.manual_seed(1)
    shapes = [(SEQUENCE, WIDTH), (WIDTH,), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
    return [(torch.randn(shape) / shape[-1] ** 0.5).requires_grad_() for shape in shapes]


def mine(tensor: Tensor, dim: int = 0) -> Tensor:
    """A copy of this rank's chunk, as a leaf of its own."""
    return whole(tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()])


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of it, as a leaf of its own."""
    return tensor.detach().clone().requires_grad_()


def held_here(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """The bytes of parameters, gradients and AdamW's moments on this rank."""
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = optimizer.state.values()
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    return {
        "parameters": sum(map(local_bytes, parameters)),
        "gradients": sum(map(local_bytes, gradients)),
        "moments": sum(map(local_bytes, moments)),
    }


def local_bytes(tensor: Tensor) -> int:
    """The bytes of the tensor, or of this rank's part of a DTensor."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[dict[int, int]]:
    """The bytes of each storage that autograd keeps inside the block, without the weights'."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept

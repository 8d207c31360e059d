"""One job in a rank: what each step followed, and what its gradient is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.waiting import all_arrive

from .plan import FEATURES, TASKS, GlobalBatch, Job


class Assays(nn.Module):
    """Two layers with a tanh between: a logit for each task."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(FEATURES, 5)
        self.outer = nn.Linear(5, TASKS)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.outer(torch.tanh(self.inner(inputs)))
        return logits  # (B, T)


def flat(tensors: Iterable[Tensor]) -> list[float]:
    """All elements of all tensors."""
    return [x for tensor in tensors for x in tensor.detach().flatten().tolist()]


def gradient_of(model: Assays) -> list[float]:
    """What an optimizer sees; None is 0."""
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def parts_of(model: Assays, step: GlobalBatch, rank: int) -> list[dict[str, Any]]:
    """By task, of this rank: summed cross-entropy of positives, negatives and missing labels.

    The missing ones count as negatives here. Each has its loss and its gradient, in float64.
    """
    twin = Assays(0).double()
    twin.load_state_dict(model.state_dict())
    inputs = torch.tensor(step.inputs[rank], dtype=torch.float64).reshape(-1, FEATURES)
    logits = twin(inputs)
    parts = []
    for task in range(TASKS):
        part = {}
        for name, value in (("positive", 1.0), ("negative", 0.0), ("missing", None)):
            rows = [n for n, row in enumerate(step.labels[rank]) if row[task] == value]
            x = logits[rows, task]
            loss = F.softplus(-x if value else x).sum()
            grads = torch.autograd.grad(loss, list(twin.parameters()), retain_graph=True)
            part[name] = {"loss": loss.item(), "gradient": flat(grads)}
        parts.append(part)
    return parts


def tensors_of(job: Job, step: GlobalBatch, rank: int) -> dict[str, Tensor]:
    """What a rank passes to a step."""
    rows = [[math.nan if x is None else x for x in row] for row in step.labels[rank]]
    return {
        "inputs": torch.tensor(step.inputs[rank]).reshape(-1, FEATURES),
        "targets": torch.tensor(rows).reshape(-1, TASKS),
        "pos_weight": torch.tensor(job.pos_weight),
    }


def is_same(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors have the same elements; NaN is equal to NaN here."""
    return torch.equal(old.nan_to_num(-1), new.nan_to_num(-1))


def run(job: Job, context: RankContext, learner: SimpleNamespace) -> Any:
    """Take all steps. Returns, for each: the gradients followed, and what it is made of."""
    context.init_group()
    model = Assays(job.model_seed + context.rank)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    followed: list[list[float]] = []
    register_optimizer_step_pre_hook(lambda *_: followed.append(gradient_of(model)))
    facts = []
    for step in job.steps:
        given = tensors_of(job, step, context.rank)
        passed = {name: tensor.clone() for name, tensor in given.items()}
        parts = parts_of(model, step, context.rank)
        followed.clear()
        returned = learner.train_step(wrapped, optimizer, *passed.values())
        is_float = isinstance(returned, float)
        facts.append(
            {
                "parts": parts,
                "followed": [*followed],
                "returned": returned if is_float else repr(returned)[:60],
                "is_float": is_float,
                "changed": [n for n in given if not is_same(given[n], passed[n])],
            }
        )
    # Who is done early stays: an exit could fail the collective in which its peers still are.
    all_arrive(context, f"ended-{job.world_size}", 3.0)
    return facts

"""Which parameters have optimizer state on a rank, and the run in one process. In the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .plan import Run


class Owned:
    """Names of the parameters that have optimizer state on this rank."""

    def __init__(self, model: nn.Module) -> None:
        self.names: set[str] = set()
        self.name_of: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        """Some optimizer has stepped."""
        for parameter, state in optimizer.state.items():
            if state:
                self.names.add(self.name_of.get(parameter, "a tensor that is no parameter"))


def expected(run: Run) -> dict[str, Any]:
    """One process: weights and losses; SGD with momentum, written out."""
    model, (inputs, targets) = OddNet(seed=0), marked_samples(run.num_samples)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    history = []
    for _ in range(run.epochs):
        total = 0.0
        for first in range(0, run.num_samples, run.global_batch_size):
            step = slice(first, first + run.global_batch_size)
            losses = (model(inputs[step]) - targets[step]).pow(2).sum(1)
            total += float(losses.detach().sum())
            grads = torch.autograd.grad(losses.mean(), used)
            for parameter, speed, grad in zip(used, speeds, grads, strict=True):
                speed.mul_(0.9).add_(grad)
                parameter.data.sub_(run.lr * speed)
        history.append(total / run.num_samples)
    return {"weights": weights_of(model), "history": history}

"""What a rank trains and evaluates, and the same training in one process. In the ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of
from rehearsal.kit.observe.samples import marked_samples, weights_of

from .plan import Run


def seed_ambient(run: Run, rank: int) -> None:
    """Give the process other random states than its neighbors, as any process has."""
    torch.manual_seed(run.ambient + rank)
    np.random.seed(run.ambient + rank)
    random.seed(run.ambient + rank)


class Watch:
    """One rank's steps, as samples; each evaluation pass is recorded with its true loss."""

    def __init__(self, context: RankContext, run: Run, model: OddNet) -> None:
        self.context, self.run, self.model, self.twin = context, run, model, OddNet()
        self.data = marked_samples(run.num_samples + run.num_held_out)
        self.steps: list[list[int]] = [[]]
        self.by_pass: list[list[int]] = []
        before_forward(model, self._forward)
        register_optimizer_step_post_hook(lambda *_: self.steps.append([]))

    def _forward(self, batch: Tensor) -> None:
        ids = ids_of(batch)
        is_trained = torch.is_grad_enabled() and all(i < self.run.num_samples for i in ids)
        if is_trained:
            self.steps[-1] += ids
            self.by_pass.append(ids)
            return
        self.twin.load_state_dict(self.model.state_dict())
        with torch.no_grad():
            errors = (self.twin(self.data[0][ids]) - self.data[1][ids]).pow(2).sum()
        done = len(self.steps) - 1 or len(self.by_pass)
        self.context.record("evaluated", samples=ids, step=done, error=errors.item())

    def trained(self) -> list[list[int]]:
        """The samples of each step; of each pass, if the updates are written out."""
        return self.steps[:-1] or self.by_pass


def expected(run: Run, by_rank: list[list[list[int]]]) -> dict[str, Any]:
    """The weights of one process that trains the same steps, SGD written out."""
    model = OddNet()
    inputs, targets = marked_samples(run.num_samples + run.num_held_out)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    for shares in zip(*by_rank, strict=False):
        samples = [sample for share in shares for sample in share]
        loss = (model(inputs[samples]) - targets[samples]).pow(2).sum(1).mean()
        grads = torch.autograd.grad(loss, used)
        for parameter, speed, grad in zip(used, speeds, grads, strict=True):
            speed.mul_(0.9).add_(grad)
            parameter.data.sub_(run.lr * speed)
    return weights_of(model)

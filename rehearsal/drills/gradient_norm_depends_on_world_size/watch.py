"""What went into each optimizer step of a rank, and what it followed. Runs in the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of, marked_samples

from .plan import Run


def outlying_samples(run: Run) -> tuple[Tensor, Tensor]:
    """Inputs (n, D) and targets (n, 2); one sample of each full batch is an outlier."""
    inputs, targets = marked_samples(run.num_samples, seed=run.data_seed)
    targets *= 0.2
    outliers = targets[run.outlier :: run.global_batch_size]
    outliers *= 240 / outliers.norm(dim=1, keepdim=True)
    return inputs, targets


def used_parameters(model: OddNet) -> list[Tensor]:
    """Those that the loss depends on."""
    return [p for name, p in model.named_parameters() if name != "unused"]


class StepWatch:
    """Each optimizer step of a rank: its micro-batches, and the weights before and after."""

    def __init__(self, model: OddNet) -> None:
        self.model, self.now = model, list[list[int]]()
        self.steps: list[tuple[list[list[int]], Tensor, Tensor]] = []
        self.before, self.last, self.uses_optimizer = torch.empty(0), torch.empty(0), False
        before_forward(model, self._forward)
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._ends)

    def flat(self) -> Tensor:
        """All used weights, as they are now."""
        return torch.cat([p.detach().flatten().clone() for p in used_parameters(self.model)])

    def _forward(self, batch: Tensor) -> None:
        if torch.is_grad_enabled():
            self._ends_by_hand()
            self.now.append(ids_of(batch))

    def _ends_by_hand(self) -> None:
        """A rank may write its updates out: then a step ends where the weights change."""
        now = self.flat()
        if not self.uses_optimizer and self.now and not torch.equal(now, self.last):
            self.steps.append((self.now, self.last, now))
            self.now = []
        self.last = now

    def _begins(self, *_: Any) -> None:
        self.before, self.uses_optimizer = self.flat(), True

    def _ends(self, *_: Any) -> None:
        self.steps.append((self.now, self.before, self.flat()))
        self.now = []

    def off_rank_0s(self, model: OddNet) -> float:
        """How far from rank 0's initial weights the first step began, at most."""
        given = torch.cat([p.detach().flatten() for p in used_parameters(model)])
        return max(
            ((before - given).abs().max().item() for _, before, _ in self.steps[:1]),
            default=0.0,
        )

    def facts(self, inputs: Tensor, targets: Tensor, lr: float) -> list[dict[str, Any]]:
        """For each step: its micro-batches, their gradients of summed errors, and its own."""
        facts = []
        self._ends_by_hand()
        for micro_batches, before, after in self.steps:
            twin = OddNet()
            parameters = used_parameters(twin)
            parts = before.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.data.copy_(part.view_as(parameter))
            sums = []
            for ids in micro_batches:
                errors = (twin(inputs[ids]) - targets[ids]).pow(2).sum()
                grads = torch.autograd.grad(errors, parameters)
                sums.append(torch.cat([grad.flatten() for grad in grads]))
            followed = (before - after) / lr
            facts.append({"micro_batches": micro_batches, "sums": sums, "followed": followed})
        return facts

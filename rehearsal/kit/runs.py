"""A run that is stopped and goes on: its samples by step, and what one process would reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import OddNet, marked_samples, weights_of
from rehearsal.engine.rank import RankContext

Shares = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """``steps`` steps of SGD with momentum, ``share`` samples of each on each rank."""

    steps: int
    share: int = 2
    lr: float = 0.02

    def shares(self, rank: int, world_size: int) -> Shares:
        """shares(step) yields a rank's inputs and targets from that step on."""

        def from_step(step: int) -> Iterator[tuple[Tensor, Tensor]]:
            inputs, targets = marked_samples(self.steps * self.share * world_size)
            for number in range(step, self.steps):
                first = (number * world_size + rank) * self.share
                place = slice(first, first + self.share)
                yield inputs[place], targets[place]

        return from_step

    def expected(self, world_size: int) -> dict[str, str]:
        """The weights of one process that trains all samples of a step, never stopped."""
        model = OddNet()
        used = [model.inner.weight, model.inner.bias, model.outer.weight, model.outer.bias]
        momenta = [torch.zeros_like(parameter) for parameter in used]
        ranks = [self.shares(rank, world_size)(0) for rank in range(world_size)]
        for step in zip(*ranks, strict=True):
            inputs, targets = (torch.cat(part) for part in zip(*step, strict=True))
            loss = (model(inputs) - targets).pow(2).sum(1).mean()
            # By hand: an optimizer's steps would be recorded as the learner's.
            with torch.no_grad():
                grads = torch.autograd.grad(loss, used)
                for parameter, momentum, grad in zip(used, momenta, grads, strict=True):
                    momentum.mul_(0.9).add_(grad)
                    parameter.sub_(self.lr * momentum)
        return weights_of(model)

    def steps_trained(self, reports: Sequence[RankReport], rank: int = 0) -> list[int]:
        """The steps of a rank's forward passes, told by the samples in them."""
        return [
            event["samples"][0] // (self.share * len(reports))
            for event in reports[rank].of("forward")
        ]


def record_after(context: RankContext, step: int, kind: str) -> None:
    """Record an event after that optimizer step of this rank: a fault may wait for it."""
    steps = count(1)

    def record(*_: object) -> None:
        if next(steps) == step:
            context.record(kind)

    register_optimizer_step_post_hook(record)

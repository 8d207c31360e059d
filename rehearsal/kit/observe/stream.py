"""Samples by step and rank, and the weights that a single process would reach on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

Shares = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleStream:
    """``steps`` steps of SGD with momentum; each rank has ``share`` samples in each."""

    steps: int
    share: int = 3  # not 2, the number of outputs: mixing up the dimensions must show
    lr: float = 0.02

    def shares(self, rank: int, world_size: int) -> Shares:
        """A function of a step that yields a rank's share of each step from that one on.

        Each share is inputs (share, D) and targets (share, 2).
        """

        def from_step(step: int) -> Iterator[tuple[Tensor, Tensor]]:
            inputs, targets = marked_samples(self.steps * self.share * world_size)
            for number in range(step, self.steps):
                first = (number * world_size + rank) * self.share
                place = slice(first, first + self.share)
                yield inputs[place], targets[place]

        return from_step

    def expected(self, world_size: int) -> dict[str, str]:
        """The weights of one uninterrupted process that trains all samples of each step."""
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

"""Poisoned samples, the run that skips them, and files that contain NaN. Runs in the ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .plan import INFINITE, NAN, NO_GRADIENT, OVERFLOW, Run


class NormNet(OddNet):
    """Contains a norm, whose gradient at 0 is NaN."""

    def forward(self, inputs: Tensor) -> Tensor:
        norm = (inputs[:, 1:2] * self.outer.weight[0, 0]).pow(2).sqrt()
        return super().forward(inputs) + norm  # (B, 2)


def poisoned_samples(run: Run) -> tuple[Tensor, Tensor]:
    """Inputs and targets, with the run's bad samples."""
    inputs, targets = marked_samples(run.num_samples)
    for sample, kind in run.poison.items():
        if kind == NO_GRADIENT:
            inputs[sample, 1] = 0.0
        else:
            # The square of 2e19 is more than float32 holds. With small inputs, the gradient is
            # smaller, so even its norm, which squares it, is finite.
            if kind == OVERFLOW:
                inputs[sample, 1:] *= 0.1
            value = {NAN: math.nan, INFINITE: math.inf, OVERFLOW: 2e19}[kind]
            targets[sample, sample % 2] = value
    return inputs, targets


def expected(run: Run, *, coasts: bool = False) -> list[dict[str, str]]:
    """The weights before each step, and at the end: one process, SGD with momentum written out.

    Args:
        coasts: the momentum moves the weights even in the bad steps.
    """
    model, (inputs, targets) = NormNet(seed=0), poisoned_samples(run)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    states = [weights_of(model)]
    for number in range(1, run.steps + 1):
        samples, is_bad = run.samples(number), number in run.skipped
        errors = (model(inputs[samples]) - targets[samples]).pow(2).sum(1).mean()
        grads = torch.autograd.grad(errors, used)
        finite = [bool(value.isfinite().all()) for value in (errors, *grads)]
        assert all(finite) != is_bad
        # The brief promises it, so an answer may look at the norm instead of every element.
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        assert norm.isfinite() == all(finite[1:])
        for parameter, speed, grad in zip(used, speeds, grads, strict=True):
            if coasts or not is_bad:
                speed.mul_(0.9).add_(torch.zeros_like(grad) if is_bad else grad)
                parameter.data.sub_(run.lr * speed)
        states.append(weights_of(model))
    return states


def not_finite_files(folder: Path) -> list[str]:
    """Names of the files in ``folder`` with a tensor that contains NaN or infinity."""

    def tensors(value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | list | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                yield from tensors(item)

    bad = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(Exception):  # not a file of torch's
            loaded = torch.load(path, weights_only=False)
            if not all(bool(tensor.isfinite().all()) for tensor in tensors(loaded)):
                bad.append(path.name)
    return bad

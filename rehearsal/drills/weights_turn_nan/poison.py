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


class NormNet(OddNet):
    """Contains a norm, whose gradient at 0 is NaN."""

    def forward(self, inputs: Tensor) -> Tensor:
        norm = (inputs[:, 1:2] * self.outer.weight[0, 0]).pow(2).sqrt()
        return super().forward(inputs) + norm  # (B, 2)


def poisoned_samples(count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; sample 8 ruins the loss, sample 16 only the gradient."""
    inputs, targets = marked_samples(count)
    targets[8, 1], inputs[16, 1] = math.nan, 0.0
    return inputs, targets


def expected(
    num_samples: int,
    global_batch_size: int,
    epochs: int,
    lr: float,
    *,
    coasts: bool = False,
    steps: int | None = None,
) -> dict[str, str]:
    """One process, SGD with momentum written out, without the poisoned steps.

    Args:
        coasts: the momentum moves the weights even in them.
        steps: stops after so many.
    """
    model, (inputs, targets) = NormNet(seed=0), poisoned_samples(num_samples)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    firsts = [*range(0, num_samples, global_batch_size)] * epochs
    for first in firsts[:steps]:
        step = slice(first, first + global_batch_size)
        errors = (model(inputs[step]) - targets[step]).pow(2).sum(1).mean()
        grads = torch.autograd.grad(errors, used)
        is_finite = all(bool(grad.isfinite().all()) for grad in grads)
        for parameter, speed, grad in zip(used, speeds, grads, strict=True):
            if is_finite or coasts:
                speed.mul_(0.9).add_(grad if is_finite else torch.zeros_like(grad))
                parameter.data.sub_(lr * speed)
    return weights_of(model)


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

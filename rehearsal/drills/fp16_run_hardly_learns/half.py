"""A model in half precision, samples that overflow in it, and one process that skips them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .plan import Run

NEARLY_MAX = 0.8 * torch.finfo(torch.half).max  # of two ranks' sum, it's too much


class HalfNet(OddNet):
    """Its outputs, and so the gradients that enter it, are in half precision.

    Each output has two of the hidden features to itself, and output 0 has a shift. So an
    overflow in output 1 is in a part of every other gradient, and not in the shift's.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        first, second = torch.tanh(self.inner(inputs)).split(2, dim=1)
        weight = self.outer.weight
        columns = [first @ weight[0, :2] + self.shift, second @ weight[1, 2:]]
        return (torch.stack(columns, dim=1) + self.outer.bias).half()  # (B, 2)


def samples_of(run: Run) -> tuple[Tensor, Tensor]:
    """Inputs and targets; an outlier's gradient is above the largest half, at any scale.

    Of output 1 only: see ``HalfNet``. In one step, an outlier has a twin with the opposite
    sign. A parameter's gradient is then the sum of two infinities that cancel. In the large
    step, a sample on each rank has nearly the largest gradient that fits, at the step's scale.
    """
    inputs, targets = marked_samples(run.num_samples)
    # The loss of a step is the mean over its samples of a rank, and their squares are summed.
    weight = 2 * run.scales()[run.large - 1] / (run.grad_accum_steps * run.micro_batch_size)
    targets[run.large_samples(), 1] = NEARLY_MAX / weight
    targets[run.outliers(), 1] = 1e7
    for sample, twin in run.twins():
        inputs[twin, 1:] = inputs[sample, 1:]  # feature 0 is its id
        targets[twin, 1] = -1e7
    return inputs, targets


def micro_batches_of(run: Run, rank: int) -> list[tuple[Tensor, Tensor]]:
    """What ``train`` gets on a rank."""
    inputs, targets = samples_of(run)
    places = [
        list(run.ids(step, micro_step, rank))
        for step in range(1, run.num_steps + 1)
        for micro_step in range(run.grad_accum_steps)
    ]
    return [(inputs[place], targets[place]) for place in places]


def expected(run: Run) -> dict[str, Any]:
    """One process: weights, and the log; scaler and SGD with momentum written out."""
    model, scales = HalfNet(seed=0), run.scales()
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    ranks = [micro_batches_of(run, rank) for rank in range(run.world_size)]
    log = []
    for step in range(1, run.num_steps + 1):
        scale, total = scales[step - 1], 0.0
        sums = [torch.zeros_like(parameter) for parameter in used]
        first = (step - 1) * run.grad_accum_steps
        for micro_batches in ranks:
            for inputs, targets in micro_batches[first : first + run.grad_accum_steps]:
                loss = (model(inputs).float() - targets).pow(2).sum(1).mean()
                loss = loss / run.grad_accum_steps
                total += float(loss.detach()) / run.world_size
                for one, grad in zip(
                    sums, torch.autograd.grad(loss * scale, used), strict=True
                ):
                    one.add_(grad / run.world_size)
        skipped = not all(bool(one.isfinite().all()) for one in sums)
        assert skipped == (step in run.overflows)
        norm = float(torch.cat([one.flatten() for one in sums]).norm()) / scale
        if not skipped:
            factor = min(1.0, run.max_norm / norm) / scale
            for parameter, speed, one in zip(used, speeds, sums, strict=True):
                speed.mul_(0.9).add_(one * factor)
                parameter.data.sub_(run.lr * speed)
        log.append(
            {
                "loss": total,
                "grad_norm": None if skipped else norm,
                "scale": scale,
                "skipped": skipped,
            }
        )
    return {"weights": weights_of(model), "log": log}

"""The gradient of a step of ``observe.samples.OddNet``, written out on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import trained_by_step
from rehearsal.kit.judge.weights import Weights, numbers


def odd_net_gradient(
    reports: Sequence[RankReport],
    offset: Callable[[RankReport, int], Sequence[float]] = lambda _, __: (0.0, 0.0),
) -> Callable[[int, Weights], Mapping[str, Sequence[float]]]:
    """The gradient of the mean squared error over the samples of all ranks.

    Args:
        reports: of a run; rank 0's answer has the "samples": inputs and targets.
        offset: what a rank adds to its outputs in a step, counted from 0.

    Returns the gradient of each parameter that has one, given the step and its weights.
    """
    inputs, targets = reports[0].answer["samples"]
    by_rank = [trained_by_step(report) for report in reports]

    def gradient(step: int, weights: Weights) -> dict[str, list[float]]:
        values = {name: numbers(text) for name, text in weights.items() if name != "unused"}
        grads = {name: [0.0] * len(own) for name, own in values.items()}
        trained = [
            (sample, offset(report, step))
            for report, own in zip(reports, by_rank, strict=True)
            if step < len(own)
            for sample in own[step]
        ]
        for sample, shift in trained:
            add_gradient(values, grads, inputs[sample], targets[sample], shift, len(trained))
        return grads

    return gradient


def add_gradient(
    values: Mapping[str, Sequence[float]],
    grads: Mapping[str, list[float]],
    inputs: Sequence[float],  # (D,)
    targets: Sequence[float],  # (2,)
    shift: Sequence[float],
    num_samples: int,
) -> None:
    """Add the gradient of one sample's part of the mean: two layers with a tanh between."""
    rows = len(values["inner.bias"])
    hidden = []
    for row, bias in enumerate(values["inner.bias"]):
        weight = values["inner.weight"][row * len(inputs) :]
        hidden.append(
            math.tanh(bias + sum(w * x for w, x in zip(weight, inputs, strict=False)))
        )
    back = [0.0] * rows
    for row, bias in enumerate(values["outer.bias"]):
        weight = values["outer.weight"][row * rows : (row + 1) * rows]
        output = bias + shift[row] + sum(w * h for w, h in zip(weight, hidden, strict=True))
        grad = 2 * (output - targets[row]) / num_samples
        grads["outer.bias"][row] += grad
        for column, (w, h) in enumerate(zip(weight, hidden, strict=True)):
            grads["outer.weight"][row * rows + column] += grad * h
            back[column] += grad * w
    for row, h in enumerate(hidden):
        grad = back[row] * (1 - h * h)
        grads["inner.bias"][row] += grad
        for column, x in enumerate(inputs):
            grads["inner.weight"][row * len(inputs) + column] += grad * x

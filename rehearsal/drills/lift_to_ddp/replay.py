"""The same training in one process, on plain numbers: what every rank should have computed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.gradients import add_gradient
from rehearsal.kit.judge.weights import Weights, numbers

from .plan import Plan


class Epoch(NamedTuple):
    """The end of an epoch."""

    weights: Weights
    loss: float  # mean over the samples of all ranks, as measured while training
    num_samples: int


def as_text(values: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Weights in the form in which ranks report theirs."""
    return {name: array("f", own).tobytes().hex() for name, own in values.items()}


def loss_of(
    values: Mapping[str, Sequence[float]], inputs: Sequence[float], targets: Sequence[float]
) -> float:
    """The loss of one sample: the squared errors of its outputs, summed."""
    hidden = layer(values["inner.weight"], values["inner.bias"], inputs)
    outputs = layer(values["outer.weight"], values["outer.bias"], [*map(math.tanh, hidden)])
    return sum((o - t) ** 2 for o, t in zip(outputs, targets, strict=True))


def layer(
    weight: Sequence[float], bias: Sequence[float], inputs: Sequence[float]
) -> list[float]:
    """A linear layer."""
    size = len(inputs)
    return [
        offset + sum(w * x for w, x in zip(weight[row * size :], inputs, strict=False))
        for row, offset in enumerate(bias)
    ]


def replay(plan: Plan, reports: Sequence[RankReport]) -> list[Epoch]:
    """SGD from rank 0's weights, over the samples of all ranks in each step."""
    inputs, targets = reports[0].answer["samples"]
    values = {name: numbers(text) for name, text in reports[0].answer["initial"].items()}
    steps = samples_by_step(reports)[: plan.num_steps]
    epochs: list[Epoch] = []
    losses: list[float] = []
    for number, step in enumerate(steps, 1):
        grads = {name: [0.0] * len(own) for name, own in values.items()}
        for sample in step:
            losses.append(loss_of(values, inputs[sample], targets[sample]))
            add_gradient(values, grads, inputs[sample], targets[sample], (0.0, 0.0), len(step))
        for name, own in values.items():
            grad = grads[name]
            values[name] = [w - plan.lr * g for w, g in zip(own, grad, strict=True)]
        if number % len(plan.sizes) == 0:
            mean = sum(losses) / len(losses)
            epochs.append(Epoch(as_text(values), mean, len(losses)))
            losses = []
    return epochs

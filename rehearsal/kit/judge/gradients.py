"""The gradient of a step of ``observe.samples.OddNet``, computed in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import trained_by_step
from rehearsal.kit.judge.weights import Weights, numbers


def gradient_of(
    reports: Sequence[RankReport],
    num_samples: int,
    offset: Callable[[RankReport, int], Sequence[float]] = lambda _, __: (0.0, 0.0),
) -> Callable[[int, Weights], Mapping[str, Sequence[float]]]:
    """The gradient of the mean squared error over the samples of all ranks.

    Args:
        reports: of a run, with the samples of each step.
        offset: what a rank adds to its outputs in a step, counted from 0.

    Returns the gradient of each parameter that has one, given the step and its weights.
    """
    import torch

    from rehearsal.kit.observe.samples import OddNet, marked_samples

    net, (inputs, targets) = OddNet(), marked_samples(num_samples)
    by_rank = [trained_by_step(report) for report in reports]
    used = {name: value for name, value in net.named_parameters() if name != "unused"}

    def gradient(step: int, weights: Weights) -> dict[str, list[float]]:
        with torch.no_grad():
            for name, parameter in used.items():
                parameter.copy_(torch.tensor(numbers(weights[name])).view_as(parameter))
        errors = [
            net(inputs[own[step]]) + torch.tensor(offset(report, step)) - targets[own[step]]
            for report, own in zip(reports, by_rank, strict=True)
            if step < len(own)
        ]
        losses = torch.cat(errors).pow(2).sum(1)
        grads = torch.autograd.grad(losses.mean(), list(used.values()))
        return {name: grad.flatten().tolist() for name, grad in zip(used, grads, strict=True)}

    return gradient

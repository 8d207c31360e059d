"""What a grader of clipping needs: a step's gradients by micro-batch, and what it followed.

Whoever shortens a gradient must know when it is whole. Each way of shortening leaves another
step behind, and the micro-batches of all ranks tell which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.harness import OddNet, ids_of, marked_samples
from rehearsal.kit.steps import Vector, norm, shortened, weighted

# ---------------------------------------------------------------- in the ranks


def outlying_samples(count: int) -> tuple[Tensor, Tensor]:
    """Inputs (n, D) and targets (n, 2); samples 4, 13, 22, ... are far from all others."""
    inputs, targets = marked_samples(count)
    targets *= 0.3
    targets[4::9] *= 40
    return inputs, targets


def used_parameters(model: OddNet) -> list[Tensor]:
    """Those that take part in the loss."""
    return [p for name, p in model.named_parameters() if name != "unused"]


class StepWatch:
    """Each optimizer step of a rank: its micro-batches, and the weights before and after."""

    def __init__(self, model: OddNet) -> None:
        self.model, self.now = model, list[list[int]]()
        self.steps: list[tuple[list[list[int]], Tensor, Tensor]] = []
        self.before = torch.empty(0)
        model.register_forward_pre_hook(self._forward)
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._ends)

    def flat(self) -> Tensor:
        """All weights that are used, as they are now."""
        return torch.cat([p.detach().flatten().clone() for p in used_parameters(self.model)])

    def _forward(self, _: Any, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            self.now.append(ids_of(inputs[0]))

    def _begins(self, *_: Any) -> None:
        self.before = self.flat()

    def _ends(self, *_: Any) -> None:
        self.steps.append((self.now, self.before, self.flat()))
        self.now = []

    def facts(self, inputs: Tensor, targets: Tensor, lr: float) -> list[dict[str, Any]]:
        """Of each step: its micro-batches, the gradients of their summed errors, its own."""
        told = []
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
            told.append({"micro_batches": micro_batches, "sums": sums, "followed": followed})
        return told


# ---------------------------------------------------------------- in the judges


def parts_of_odd_net() -> list[slice]:
    """Where each parameter that is used lies in a vector."""
    ends = accumulate((20, 4, 8, 2), initial=0)  # inner and outer: weight, bias
    return [slice(a, b) for a, b in pairwise(ends)]


def ways_to_clip(
    sums: Sequence[Sequence[Vector]], total: int, most: float
) -> Iterator[tuple[str, str, list[float]]]:
    """Code, words and value of what a step may have followed, the right one first.

    Args:
        sums: of each rank and micro-batch, the gradient of the summed errors.
        total: the step's samples, over all ranks.
        most: the bound of the norm.
    """
    world_size, length = len(sums), len(next(v for rank in sums for v in rank))
    mean = [x / total for x in added([v for rank in sums for v in rank], length)]
    yield "", "the mean gradient, shortened by its own norm", shortened(mean, most)
    yield "not-clipped", "the mean gradient at its full length", mean
    stretched = [x * most / (norm(mean) or 1.0) for x in mean]
    yield "clipped-up", "the mean gradient, made longer up to the bound", stretched
    by_tensor = [x for part in parts_of_odd_net() for x in shortened(mean[part], most)]
    yield "clipped-in-parts", "the mean gradient, each parameter by its own norm", by_tensor
    by_element = [max(-most, min(most, x)) for x in mean]
    yield "clipped-in-parts", "the mean gradient, each element cut off", by_element
    # As DDP has it, a rank's gradient is averaged; as a plain sum has it, it is added.
    for scale, weight in ((world_size / total, 1 / world_size), (1 / total, 1.0)):
        ranks = [[[x * scale for x in vector] for vector in rank] for rank in sums]
        own = [added(rank, length) for rank in ranks]
        for code, words, local in local_ways(ranks, own, length, most):
            result = [x * weight for x in added(local, length)]
            yield code, words, result
            yield code, words + ", and their mean once more", shortened(result, most)
        norms = [norm(vector) for vector in own]
        for words, wrong in (
            ("rank 0's", norms[0]),
            ("the longest of the ranks'", max(norms)),
            ("the mean of the ranks'", sum(norms) / world_size),
            ("the ranks' added up", sum(norms)),
            ("the ranks' added up in squares", norm(norms)),
        ):
            factor = min(1.0, most / (wrong or 1.0))
            told = f"the mean gradient, shortened by another norm: {words}, {wrong:.3g}"
            yield "norm-of-norms", told, [x * factor for x in mean]


def local_ways(
    ranks: Sequence[Sequence[Vector]], own: Sequence[Vector], length: int, most: float
) -> Iterator[tuple[str, str, list[list[float]]]]:
    """Code, words and each rank's gradient, shortened before the others know of it."""
    each = [shortened(vector, most) for vector in own]
    yield "clipped-per-rank", "what each rank had shortened by its own norm", each
    words = "what each rank had shortened after each micro-batch"
    for until in (0, 1):  # all micro-batches; all but the last
        kept = []
        for rank in ranks:
            sum_so_far = [0.0] * length
            for at, vector in enumerate(rank, 1):
                sum_so_far = added([sum_so_far, vector], length)
                if at <= len(rank) - until:
                    sum_so_far = shortened(sum_so_far, most)
            kept.append(sum_so_far)
        yield "clipped-per-micro-batch", words + " but the last" * until, kept
    alone = [added([shortened(vector, most) for vector in rank], length) for rank in ranks]
    words = "the sum of micro-batches, each shortened by its own norm"
    yield "clipped-per-micro-batch", words, alone


def added(vectors: Sequence[Vector], length: int) -> list[float]:
    """Their sum; zeros if there is none."""
    return weighted([[0.0] * length, *vectors], [1.0] * (len(vectors) + 1))

"""What went through a model while it was trained, and what each step did to the weights.

Runs in the rank. A batch says which sequences it holds, so nothing is asked of the learner's
code but that it calls the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .plan import HEAD, Plan, Run, Settings
from .reference import bounded, close, gradient, logits_of, mean_loss, parameters_of, vector

TRAINED, HELD_OUT, UNKNOWN = "trained", "held out", "unknown"


class Pass(NamedTuple):
    """One call of the model."""

    what: str  # TRAINED, HELD_OUT or UNKNOWN
    rows: list[int]  # which sequences
    has_graph: bool
    drops: bool  # the logits aren't those without dropout
    weights: dict[str, Tensor]


class Watch:
    """Keeps each call of a model from its construction on.

    Args:
        drops: whether the model has dropout, so that its logits say in which mode it was.
    """

    def __init__(self, plan: Plan, model: nn.Module, *, drops: bool) -> None:
        self.plan, self.drops, self.passes = plan, drops, list[Pass]()
        self.known = {
            tuple(sequence[:HEAD]): (what, row)
            for what, sequences in ((TRAINED, plan.sequences), (HELD_OUT, plan.held_out))
            for row, sequence in enumerate(sequences)
        }
        model.register_forward_hook(self._called, with_kwargs=True)

    @torch.no_grad()
    def _called(self, model: nn.Module, args: Any, kwargs: Any, logits: Tensor) -> None:
        tokens: Tensor = [*args, *kwargs.values()][0]
        found = [self.known.get(tuple(row[:HEAD]), (UNKNOWN, -1)) for row in tokens.tolist()]
        kinds = {what for what, _ in found}
        what = kinds.pop() if len(kinds) == 1 else UNKNOWN
        weights = parameters_of(model)
        drops = False
        if self.drops:
            right = logits_of(weights, tokens, self.plan.shape)
            drops = logits.shape != right.shape or not close(logits, right)
        rows = [row for _, row in found]
        self.passes.append(Pass(what, rows, logits.requires_grad, drops, weights))

    def of(self, what: str) -> list[Pass]:
        """The calls with sequences of one kind."""
        return [one for one in self.passes if one.what == what]


def steps_of(passes: Sequence[Pass], count: int, settings: Settings) -> list[list[Pass]] | None:
    """The calls of each step; None if the calls don't fit the steps."""
    waiting, steps = deque(passes), list[list[Pass]]()
    for _ in range(settings.epochs):
        for first in range(0, count, settings.batch_size):
            left, step = min(settings.batch_size, count - first), list[Pass]()
            while left > 0 and waiting:
                step.append(waiting.popleft())
                left -= len(step[-1].rows)
            if left:
                return None
            steps.append(step)
    return None if waiting else steps


def facts_of(
    plan: Plan, run: Run, watch: Watch, begin: dict[str, Tensor], end: dict[str, Tensor]
) -> dict[str, Any]:
    """What a judge wants to know of a run, as plain data.

    Args:
        begin, end: the parameters before it and after it.
    """
    trained = [one for one in watch.of(TRAINED) if one.has_graph]  # or it's an evaluation
    held_out = watch.of(HELD_OUT)
    steps = steps_of(trained, run.num_sequences, run.settings)
    facts: dict[str, Any] = {
        "order": [row for one in trained for row in one.rows],
        "unknown": sum(len(one.rows) for one in watch.of(UNKNOWN)),
        "largest": max((len(one.rows) for one in watch.passes), default=0),
        "graphs": sum(one.has_graph for one in held_out),
        "evaluations": len(held_out),
        "drops": [one.drops for one in trained],
        "drops held out": [one.drops for one in held_out],
        "end loss": mean_loss(end, torch.tensor(plan.held_out), plan.shape),
        "fits": steps is not None,
        "moved": any(not torch.equal(end[name], old) for name, old in begin.items()),
    }
    if steps is None or run.dropout:
        return facts
    befores = [step[0].weights for step in steps]
    sequences, per_epoch = torch.tensor(plan.sequences), len(steps) // run.settings.epochs
    batches = [sequences[[row for one in step for row in one.rows]] for step in steps]
    losses = [
        gradient(before, batch, plan.shape)
        for before, batch in zip(befores, batches, strict=True)
    ]
    facts["losses"] = [loss for loss, _ in losses]
    afters = [*befores[1:], end]
    facts["held out"] = [
        mean_loss(after, torch.tensor(plan.held_out), plan.shape)
        for after in afters[per_epoch - 1 :: per_epoch]
    ]
    grads = [grad for _, grad in losses]
    facts["update"] = next(wrong_updates(plan, run.settings, steps, afters, grads), None)
    return facts


def wrong_updates(
    plan: Plan,
    settings: Settings,
    steps: Sequence[Sequence[Pass]],
    afters: Sequence[dict[str, Tensor]],
    grads: Sequence[Tensor],
) -> Iterator[dict[str, Any]]:
    """Each step that did something else than it should have, and what it did.

    Args:
        grads: for each step, the gradient of its mean loss.
    """
    sequences = torch.tensor(plan.sequences)
    speed = torch.zeros(())
    for number, (step, after, grad) in enumerate(zip(steps, afters, grads, strict=True), 1):
        before = step[0].weights
        start, rate = vector(before), settings.rate(number)
        where = {"step": number, "of": len(step)}
        if any(not torch.equal(vector(one.weights), start) for one in step):
            yield where | {"what": "moved within"}
        right = rate * (0.9 * speed + bounded(grad, settings.max_norm))
        moved = start - vector(after)
        if not close(moved, right):
            means = [gradient(before, sequences[one.rows], plan.shape)[1] for one in step]
            yield where | description(moved, right, moved / rate - 0.9 * speed, means)
        speed = right / rate


def description(
    moved: Tensor, right: Tensor, observed: Tensor, means: Sequence[Tensor]
) -> dict[str, Any]:
    """What a step did instead.

    Args:
        observed: the gradient that it followed, if its rate was right.
        means: for each micro-batch, the gradient of its mean loss.
    """
    if not moved.any():
        return {"what": "stood still"}
    if close(direction(moved), direction(right)):
        return {"what": "size", "ratio": float(moved.norm() / right.norm())}
    # Is it a sum of the micro-batches' gradients, with other weights?
    matrix = torch.stack(list(means), 1)
    weights = torch.linalg.lstsq(matrix, observed[:, None]).solution[:, 0]
    if close(matrix @ weights, observed):
        used = (weights.abs() > 0.01 * weights.abs().max()).tolist()
        return {
            "what": "weights",
            "used": [at for at, is_used in enumerate(used, 1) if is_used],
        }
    away = float((moved - right).norm() / right.norm())
    return {"what": "other", "away": away}


def direction(grad: Tensor) -> Tensor:
    """A gradient, scaled to the norm 1."""
    scaled: Tensor = grad / grad.norm()
    return scaled

"""Records each step of a run whose model and optimizer the learner makes.

Runs in the ranks; ``kit.judge.recorded_run.start_in`` reads what is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import random_state_digest

from .labels import row_of


@contextmanager
def watched_steps(
    context: RankContext, folder: str, dataset: Any, *, computes_losses: bool
) -> Iterator[None]:
    """Record each step of whatever classifier is trained: samples and weights.

    A sample is recognized by its row in ``dataset``: the first with that input, or -1. A model
    whose output isn't one number per class is recorded as "no_logits", and no further.

    Args:
        computes_losses: record each sample's loss, the outputs' range and last operation, and
            ``cosine``, which compares a step's gradient with that of its samples'
            cross-entropy, whatever the scale. It takes a second backward pass per step.
    """
    rows = [torch.as_tensor(dataset[i][0]) for i in range(len(dataset))]
    ids = {row_of(row): i for i, row in reversed(list(enumerate(rows)))}
    classes = torch.tensor([int(dataset[i][1]) for i in range(len(dataset))])
    inside: list[torch.nn.Module] = []
    noise, wanted = "", dict[int, torch.Tensor]()

    def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def weights(optimizer: torch.optim.Optimizer) -> dict[str, bytes]:
        values = [p.detach().float().numpy() for p in parameters(optimizer)]
        return {f"parameter {n}": value.tobytes() for n, value in enumerate(values)}

    def enter(module: torch.nn.Module, _: Any) -> None:
        nonlocal noise
        if not inside:
            noise = random_state_digest()
        inside.append(module)

    def leave(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        inside.pop()
        drew = "" if noise == random_state_digest() else noise  # "" without dropout
        own = [p for p in module.parameters() if p.requires_grad]
        if inside or not own or not output.requires_grad:
            return
        samples = [ids.get(row_of(row), -1) for row in inputs[0]]
        if output.dim() != 2 or output.size(1) <= int(classes.max()):
            context.record("no_logits", shape=list(output.shape))
            return
        facts: dict[str, Any] = {"samples": samples, "rng": drew}
        grads: Sequence[torch.Tensor | None] = [None] * len(own)
        if computes_losses:
            losses = cross_entropy(output.float(), classes[samples], reduction="none")
            grads = torch.autograd.grad(losses.sum(), own, retain_graph=True, allow_unused=True)
            facts |= {"losses": losses.detach(), "last": output.grad_fn.name()}
            facts |= {"low": float(output.detach().min()), "high": float(output.detach().max())}

        def used(_: torch.Tensor) -> None:
            # Only now is it a training pass: something backpropagates through it.
            context.record("forward", **facts)
            for parameter, grad in zip(own, grads, strict=True):
                if grad is not None:
                    wanted[id(parameter)] = wanted.get(id(parameter), 0) + grad

        output.register_hook(used)

    def cosine(optimizer: torch.optim.Optimizer) -> float:
        pairs = [(p.grad, wanted.get(id(p))) for p in parameters(optimizer)]
        found, right = (
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(parameters(optimizer), side, strict=True)
                ]
            )
            for side in zip(*pairs, strict=True)
        )
        wanted.clear()
        return float(torch.cosine_similarity(found.double(), right.double(), dim=0))

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        facts = {"cosine": cosine(optimizer)} if computes_losses else {}
        lr = float(optimizer.param_groups[0]["lr"])
        context.record("before_step", lr=lr, weights=weights(optimizer), **facts)

    hooks = [
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave),
        optimizers.register_optimizer_step_pre_hook(before),
        optimizers.register_optimizer_step_post_hook(
            lambda optimizer, *_: context.record("stepped", weights=weights(optimizer))
        ),
    ]
    context.record("start", folder=folder)
    yield
    context.record("end", folder=folder, weights={"": b""})
    for hook in hooks:
        hook.remove()

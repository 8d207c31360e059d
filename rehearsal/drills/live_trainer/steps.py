"""Who am I, and one optimizer step: what each rank has after it, and what it sent."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import before_forward, weights_of

from .draws import SmallRun, steps_of_check
from .parts import batch_of

TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def identity_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Without torchrun; then as the only rank of its node; then wrap a model."""
    cfg = learner.TrainConfig(**plan.settings(context.folder / "who"))
    environment = {name: os.environ.pop(name) for name in TORCHRUN}
    try:
        alone = [*learner.maybe_init_dist(cfg)]
    except NotImplementedError:
        raise
    except Exception as error:
        alone = [f"{type(error).__name__}: {error}"]
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.update(environment, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    named = [*learner.maybe_init_dist(cfg)]
    answer: dict[str, Any] = {"alone": alone, "named": named, "group": dist.is_initialized()}
    if not answer["group"]:
        return answer
    answer["group rank"] = [dist.get_rank(), dist.get_world_size()]
    torch.manual_seed(plan.seed + context.rank)
    model = learner.TinyNet(cfg)
    answer["before"] = weights_of(model)
    wrapped = learner.wrap_model(cfg, model)
    answer["after"] = weights_of(model)
    answer["wrapped"] = weights_of(wrapped)
    del wrapped
    return answer


class Silent:
    """Timers that measure nothing."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """A phase ended."""


def step_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Three steps, one with an empty share, each against the same step on one rank.

    Then two in which the gradient isn't finite.
    """
    drawn = steps_of_check(plan)
    cfg = learner.TrainConfig(**plan.settings(context.folder / "step", dropout=0))
    alone = learner.TrainConfig(
        **plan.settings(context.folder / "step", dropout=0, micro_batch_size=1)
    )
    rank, size = learner.maybe_init_dist(cfg)
    dataset = learner.ToyClassificationDataset(cfg)
    every, labels = batch_of(dataset, plan.num_samples)
    torch.manual_seed(plan.seed)
    model = learner.TinyNet(cfg)
    answer: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    wrapped = learner.wrap_model(cfg, model)
    micro: list[int] = []

    def seen(batch: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            micro.append(len(batch))

    before_forward(model, seen)
    optimizer = torch.optim.SGD(model.parameters(), lr=drawn.learning_rate)
    for case, scale, count in drawn.cases:
        # With micro-batches of one sample, a share of none still syncs once.
        of_case = cfg if count > size else alone
        inputs, wanted = every[:count] * scale, labels[:count]
        mine = slice(rank, None, size)
        reference = copy.deepcopy(model)
        loss = one_step(reference, inputs, wanted, drawn.learning_rate)
        micro.clear()
        context.record_collectives()
        context.record("case", case=case)
        part = learner.train_step(
            of_case, wrapped, optimizer, inputs[mine], wanted[mine], count, size, Silent()
        )
        context.record_collectives()
        context.record("case done")
        answer[case] = {
            "after": weights_of(model),
            "expected": weights_of(reference),
            "part": float(part),
            "loss": loss,
            "largest": max(micro, default=0),
            "limit": of_case.micro_batch_size,
            "share": len(inputs[mine]),
            "count": count,
        }
    count = drawn.cases[0].num_samples
    inputs, wanted, mine = every[:count].clone(), labels[:count], slice(rank, None, size)
    step = (cfg, wrapped, optimizer, inputs[mine], wanted[mine], count, size, Silent())
    *_, last = model.parameters()
    with contextlib.ExitStack() as stack:
        if rank == drawn.poisoned_rank:
            stack.enter_context(
                last.register_hook(lambda grad: torch.full_like(grad, drawn.infinity))
            )
        answer["infinite"] = failed_step(learner, step)
    inputs[drawn.poisoned_rank + size * drawn.poisoned_sample] = (
        drawn.poison
    )  # in the share, too
    answer["nonfinite"] = failed_step(learner, step)
    del wrapped, step
    return answer


def one_step(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, learning_rate: float
) -> float:
    """The step that all ranks together should take; returns its loss."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs).float(), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=learning_rate).step()
    return loss.item()


def failed_step(learner: SimpleNamespace, step: Sequence[Any]) -> dict[str, Any]:
    """What came of a step that should raise.

    Args:
        step: the arguments of train_step.
    """
    model, raised = step[1], ""
    before = weights_of(model)
    try:
        learner.train_step(*step)
    except NotImplementedError:
        raise
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised[:200], "changed": weights_of(model) != before}

"""Who am I, and one optimizer step: what each rank has after it, and what it sent."""

from __future__ import annotations

import copy
import os
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import before_forward, weights_of

from .draws import CASES, plan_of
from .parts import batch_of

TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def identity_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Without torchrun; then as the only rank of its node; then wrap a model."""
    cfg = learner.TrainConfig(**plan_of(context.seed).settings(context.folder / "who"))
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
    torch.manual_seed(context.seed + context.rank)
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


LR = 0.1


def step_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Three steps, one with an empty share, each against the same step on one rank."""
    plan = plan_of(context.seed)
    cfg = learner.TrainConfig(**plan.settings(context.folder / "step", dropout=0))
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
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for case, scale in CASES.items():
        # At least 10: uneven shares, but as many micro-batches on each rank. With fewer on one,
        # an answer that syncs in all of them would hang, and its real mistake go unnamed.
        count = max(10, plan.global_batch_size + 2) if case != "last of an epoch" else 2
        inputs, wanted = every[:count] * scale, labels[:count]
        mine = slice(rank, None, size)
        reference = copy.deepcopy(model)
        loss = one_step(reference, inputs, wanted)
        micro.clear()
        context.record_collectives()
        context.record("case", case=case)
        part = learner.train_step(
            cfg, wrapped, optimizer, inputs[mine], wanted[mine], count, size, Silent()
        )
        context.record_collectives()
        context.record("case done")
        answer[case] = {
            "after": weights_of(model),
            "expected": weights_of(reference),
            "part": float(part),
            "loss": loss,
            "largest": max(micro, default=0),
            "limit": cfg.micro_batch_size,
            "share": len(inputs[mine]),
            "count": count,
        }
    answer["nonfinite"] = nonfinite(learner, cfg, wrapped, optimizer, every, labels)
    del wrapped
    return answer


def one_step(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """The step that all ranks together should take; returns its loss."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs).float(), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return loss.item()


def nonfinite(
    learner: SimpleNamespace,
    cfg: Any,
    model: nn.Module,
    optimizer: Any,
    inputs: Any,
    labels: Any,
) -> Any:
    """A step in which one sample, on rank 0, is infinite."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = inputs[: 2 * size].clone()
    inputs[0] = float("inf")
    before = weights_of(model)
    mine = slice(rank, None, size)
    raised = ""
    try:
        learner.train_step(
            cfg,
            model,
            optimizer,
            inputs[mine],
            labels[: 2 * size][mine],
            2 * size,
            size,
            Silent(),
        )
    except NotImplementedError:
        raise
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised[:200], "changed": weights_of(model) != before}

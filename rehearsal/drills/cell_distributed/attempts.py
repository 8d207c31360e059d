"""Groups in one process: what wrapping does, a resume bit for bit, and two ranks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.samples import marked_samples, weights_of
from rehearsal.kit.observe.waiting import wait_until
from trainer_core.config import TrainConfig
from .plan import PATIENCE_S, Plan
from .starts import close_answers, identity_of


class Crossed(nn.Module):
    """Layers that are used in a different order than they are registered in; a buffer."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(plan.seed + seed)
        self.last = nn.Linear(plan.hidden, 2)
        self.first = nn.Linear(plan.features, plan.hidden)
        self.middle = nn.Linear(plan.hidden, plan.hidden)
        self.dropout = nn.Dropout(plan.dropout)
        self.register_buffer("shift", torch.randn(plan.hidden, generator=generator))
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(torch.tanh(self.first(inputs) + self.shift))
        outputs: Tensor = self.last(torch.tanh(self.middle(hidden)))
        return outputs


def batch_of(plan: Plan, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """A rank's samples of a step."""
    inputs, targets = marked_samples(sum(map(sum, plan.shares)), plan.features, plan.seed)
    first = sum(map(sum, plan.shares[:step])) + sum(plan.shares[step][:rank])
    mine = slice(first, first + plan.shares[step][rank])
    return inputs[mine], targets[mine]


def backward(plan: Plan, model: nn.Module, step: int, rank: int, world_size: int) -> None:
    """A rank's part of the mean over a step's samples."""
    inputs, targets = batch_of(plan, step, rank)
    loss = (model(inputs) - targets).pow(2).sum()
    (loss * world_size / sum(plan.shares[step])).backward()


def train(
    plan: Plan, model: nn.Module, inner: nn.Module, steps: Iterable[int], rank: int
) -> None:
    """Plain SGD."""
    for step in steps:
        inner.zero_grad()
        backward(plan, model, step, rank, plan.world_size)
        for parameter in inner.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(plan.rate * parameter.grad)


def gradients_of(model: nn.Module) -> dict[str, str]:
    """Every gradient, bit for bit; zeros if there is none."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().tobytes().hex()
        for name, p in model.named_parameters()
    }


def attempts(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train all steps; in a second group, the last ones from what was saved; then two ranks."""
    close_answers(context)
    here = plan.ranks_on_a_node
    os.environ.update(LOCAL_RANK=str(context.rank % here), LOCAL_WORLD_SIZE=str(here))
    cfg = TrainConfig(device="cpu", dist_timeout_s=plan.group_timeout_s)
    gc.freeze()  # a collection inspects what is made from now on, not all of torch
    gc.disable()  # only what the learner collects is collected
    first = first_attempt(plan, context, learner, cfg)
    saved = first.pop("saved")
    # Recorded now: the second group may never form.
    context.record("left", is_initialized=dist.is_initialized(), **first)
    info = learner.maybe_init_dist(cfg)
    dist.barrier()  # all are connected, so no quick rank leaves while a slow one joins
    store = dist.distributed_c10d._get_default_store()
    finds = bool(store.check(["left by the first attempt"]))
    model = Crossed(plan, seed=0)
    model.load_state_dict(saved)
    wrapped = learner.wrap_model(model, info, torch.zeros(0, plan.features))
    model.eval()
    train(plan, wrapped, model, range(plan.saved_after, plan.steps), context.rank)
    context.record("resumed", finds=finds, weights=weights_of(model))
    drop(wrapped)
    del wrapped, store  # rank 0 hosts it, and the next group needs its port
    leave(context, learner, "the second group", 0.0 if first["waits"] else PATIENCE_S)
    return pair(plan.for_two(), context, learner) if context.rank < 2 else None


def drop(wrapped: nn.Module) -> None:
    """Leave it in a reference cycle, as a trainer with hooks or an exception's frames do."""
    trainer: dict[str, Any] = {"model": wrapped}
    trainer["hook"] = lambda: trainer


def group_timeout_s() -> float | None:
    """How long the group's collectives on the CPU wait; None if torch doesn't say."""
    group = dist.distributed_c10d._get_default_group()
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    timeout = getattr(options, "_timeout", None)
    return None if timeout is None else float(timeout.total_seconds())


def first_attempt(
    plan: Plan, context: RankContext, learner: SimpleNamespace, cfg: TrainConfig
) -> Any:
    """What changes around wrapping, and the weights at the save and at the end."""
    info = learner.maybe_init_dist(cfg)
    dist.barrier()
    dist.distributed_c10d._get_default_store().set("left by the first attempt", "")
    timeout_s = group_timeout_s()
    model = Crossed(plan, seed=context.rank)
    with global_changes(model=model) as changed:
        wrapped = learner.wrap_model(model, info, torch.zeros(0, plan.features))
    answer: dict[str, Any] = {
        "identity": identity_of(info),
        "timeout_s": timeout_s,
        "changed": changed,
    }
    answer |= after_wrapping(plan, context, learner, model, wrapped)
    train(plan, wrapped, model, range(plan.saved_after), context.rank)
    answer["saved"] = {name: t.clone() for name, t in model.state_dict().items()}
    train(plan, wrapped, model, range(plan.saved_after, plan.steps), context.rank)
    answer["straight"] = weights_of(model)
    drop(wrapped)
    del wrapped
    answer["waits"] = not leave(context, learner, "the first group", PATIENCE_S)
    return answer


def leave(
    context: RankContext, learner: SimpleNamespace, group: str, patience_s: float
) -> bool:
    """Rank 0 leaves first; the others wait for its note, for as long as a slow machine needs.

    The next group's store then finds its port free.

    Returns:
        whether the note has come.
    """
    note = context.folder / f"rank 0 has left {group}"
    has_come = context.rank == 0 or wait_until(note.exists, patience_s)
    learner.cleanup_dist()
    if context.rank == 0:
        note.touch()
    return has_come


def after_wrapping(
    plan: Plan,
    context: RankContext,
    learner: SimpleNamespace,
    model: nn.Module,
    wrapped: nn.Module,
) -> dict[str, Any]:
    """The weights and gradients after wrapping, and the first step's gradient."""
    answer = {
        "left_over": gradients_of(model),
        "is_unwrapped": learner.unwrap(wrapped) is model and learner.unwrap(model) is model,
        "wrapped": weights_of(model),
        "start": weights_of(Crossed(plan, seed=0)),
    }
    model.eval()  # from here on, nothing is random
    model.zero_grad()
    backward(plan, wrapped, 0, context.rank, plan.world_size)
    return answer | {"gradient": gradients_of(model), "mean": gradients_of(whole_step(plan))}


def pair(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Wrap on two ranks: a rule for "more than two" would leave them on their own."""
    os.environ.update(LOCAL_RANK=str(context.rank), LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    info = learner.maybe_init_dist(TrainConfig(device="cpu"))
    model = Crossed(plan, seed=context.rank)
    wrapped = learner.wrap_model(model, info, torch.zeros(0, plan.features))
    answer = after_wrapping(plan, context, learner, model, wrapped)
    del wrapped
    learner.cleanup_dist()
    return answer


def whole_step(plan: Plan) -> nn.Module:
    """The first step's mean gradient, from one process."""
    model = Crossed(plan, seed=0).eval()
    for rank in range(plan.world_size):
        backward(plan, model, 0, rank, 1)
    return model

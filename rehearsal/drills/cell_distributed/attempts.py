"""Two groups in one process: what wrapping does, and a resume that must match bit for bit."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, listed, shortened
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.samples import marked_samples, weights_of
from rehearsal.kit.observe.waiting import wait_until
from trainer_core.config import TrainConfig
from .codes import TABLE
from .plan import Plan
from .starts import close_answers, identity_finding, identity_of

PATIENCE_S = 5.0  # of the ranks that stay in the group while rank 0 leaves


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
    """Train all steps; then, in a second group, the last ones from what was saved."""
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
    drop(wrapped)
    del wrapped
    learner.cleanup_dist()
    return {"finds": finds, "resumed": weights_of(model)}


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
    answer = {
        "identity": identity_of(info),
        "timeout_s": timeout_s,
        "changed": changed,
        "left_over": gradients_of(model),
        "is_unwrapped": learner.unwrap(wrapped) is model and learner.unwrap(model) is model,
        "wrapped": weights_of(model),
        "start": weights_of(Crossed(plan, seed=0)),
    }
    model.eval()  # from here on, nothing is random
    model.zero_grad()
    backward(plan, wrapped, 0, context.rank, context.world_size)
    answer |= {"gradient": gradients_of(model), "mean": gradients_of(whole_step(plan))}
    train(plan, wrapped, model, range(plan.saved_after), context.rank)
    answer["saved"] = {name: t.clone() for name, t in model.state_dict().items()}
    train(plan, wrapped, model, range(plan.saved_after, plan.steps), context.rank)
    answer["straight"] = weights_of(model)
    drop(wrapped)
    del wrapped
    # Rank 0 leaves first; the others wait for its note, for as long as a slow machine needs.
    note = context.folder / "rank-0-has-left"
    answer["waits"] = context.rank > 0 and not wait_until(note.exists, PATIENCE_S)
    learner.cleanup_dist()
    if context.rank == 0:
        note.touch()
    return answer


def whole_step(plan: Plan) -> nn.Module:
    """The first step's mean gradient, from one process."""
    model = Crossed(plan, seed=0).eval()
    for rank in range(plan.world_size):
        backward(plan, model, 0, rank, 1)
    return model


# ---------------------------------------------------------------- judging them


def judge_attempts(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order in which things happen. From events, as the second group may never form."""
    left = [event for report in reports for event in report.of("left")]
    if len(left) < len(reports):
        return  # nothing to compare; the engine reports how it failed
    yield from wrap_findings(plan, left)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        if first["waits"]:
            found = (
                f"rank {rank} stayed in the group for {PATIENCE_S:g} s, and in that time rank "
            )
            found += "0's cleanup_dist did not return"
            yield TABLE("cleanup-waits", found)
        for event in report.of("destroyed"):
            if event["live_wrappers"]:
                alive = counted(event["live_wrappers"], "live DDP wrapper")
                found = f"rank {rank} had {alive} when it destroyed the group"
                yield TABLE("wrapper-outlives-group", found)
        if first["is_initialized"]:
            found = f"rank {rank} is still in its group after cleanup_dist"
            yield TABLE("group-left-behind", found)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        again = f"rank {rank}, in a second attempt in the same process, "
        if not report.has_answer:
            why, look = "did not finish", ""
            if report.failure:
                why = f"raised {report.failure.kind}: {shortened(report.failure.message, 120)}"
                if report.failure.where:
                    look = f"at {report.failure.where}, and at the store you pass to "
                    look += "init_process_group"
            yield TABLE("joins-the-last-attempt", again + why, look)
            continue
        if report.answer["finds"]:
            found = "sees the first group's keys in the store"
            yield TABLE("joins-the-last-attempt", again + found)
        difference, name = largest_difference(first["straight"], report.answer["resumed"])
        if first["straight"] != report.answer["resumed"]:
            found = f"on {len(left)} ranks, the weights after {plan.steps} steps without a "
            found += f"restart and with one after step {plan.saved_after} differ by up to "
            found += f"{difference:.2g}, in {name}"
            yield TABLE("resumed-run-differs", found)


def wrap_findings(plan: Plan, answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """What wrap_model does to a model, and to its gradients."""
    for rank, answer in enumerate(answers):
        difference, name = largest_difference(answer["start"], answer["wrapped"])
        if difference:
            found = f"after wrap_model, rank {rank} differs from rank 0's initial weights by "
            yield TABLE("ranks-differ", f"{found}up to {difference:.2g}, in {name}")
    for rank, answer in enumerate(answers):
        expected = [rank, rank % plan.ranks_on_a_node, len(answers), "cpu"]
        if answer["identity"] != expected:
            yield identity_finding(answer["identity"], expected)
        if answer["timeout_s"] not in (plan.group_timeout_s, None):
            found = f"cfg.dist_timeout_s is {plan.group_timeout_s:g} s, and the timeout of the "
            yield TABLE("timeout-ignored", f"{found}group is {answer['timeout_s']:g} s")
        if answer["changed"]:
            found = f"on rank {rank}, wrap_model changed {listed(answer['changed'])}"
            yield TABLE("random-state-moved", found)
        zeros = {name: "00" * (len(text) // 2) for name, text in answer["left_over"].items()}
        difference, name = largest_difference(answer["left_over"], zeros)
        if difference:
            found = f"on rank {rank}, {name} has a gradient of up to {difference:.2g} before "
            found += "the first step"
            yield TABLE("gradient-left-over", found)
        if not answer["is_unwrapped"]:
            found = f"on rank {rank}, unwrap of the wrapped or of the bare model returns a "
            found += "different object"
            yield TABLE("not-unwrapped", found)
        difference, name = largest_difference(answer["mean"], answer["gradient"])
        if not difference < 1e-4:
            found = f"on rank {rank}, the gradient of {name} differs by up to {difference:.2g} "
            yield TABLE("not-the-mean", f"{found}from the mean over {len(answers)} ranks")

"""Who am I, and one optimizer step: what each rank has after it, and what it sent."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.samples import weights_of
from .cells import Earlier
from .draws import plan_of
from .findings import TABLE
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


def identity_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """Rank and size of the job, a group, and rank 0's weights."""
    size = len(reports)
    for report in reports:
        alone = report.answer["alone"]
        if alone != [0, 1]:
            found = f"without torchrun's variables, maybe_init_dist gave {some(alone)[:160]}"
            yield TABLE("not-alone", found)
            return
    for report in reports:
        named, wanted = report.answer["named"], [report.rank, size]
        said = f"with RANK={report.rank}, WORLD_SIZE={size}, LOCAL_RANK=0 and "
        said += "LOCAL_WORLD_SIZE=1, maybe_init_dist "
        if named != wanted:
            yield TABLE("wrong-rank", f"{said}returned {tuple(named)}")
            return
        if not report.answer["group"] or report.answer["group rank"] != wanted:
            has = report.answer.get("group rank", "no process group")
            yield TABLE("no-group", f"{said}left {has}")
            return
    truth = reports[0].answer["before"]
    for report in reports:
        for what in ("after", "wrapped"):
            if largest_difference(report.answer[what], truth)[0] > 0:
                found = (
                    f"each rank had weights of its own; after wrap_model, rank {report.rank}'s "
                )
                yield TABLE("ranks-start-apart", f"{found}are not rank 0's")
                return


# ---------------------------------------------------------------- one step


class Silent:
    """Timers that measure nothing."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """A phase ended."""


# Case: how large the inputs are, and how the samples are cut. The gradient of the large one is
# longer than 1, that of the small one shorter.
CASES = {"small": 0.05, "large": 30.0, "last of an epoch": 0.05}
LR = 0.1


def step_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Steps with uneven shares, against the same step on one rank."""
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

    def seen(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            micro.append(len(inputs[0]))

    model.register_forward_pre_hook(seen)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for case, scale in CASES.items():
        count = plan.global_batch_size + 2 if case != "last of an epoch" else 2
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
    return float(loss)


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


def collectives_by_case(report: RankReport) -> dict[str, list[dict[str, Any]]]:
    """A rank's collectives in each case."""
    found: dict[str, list[dict[str, Any]]] = {}
    case = ""
    for event in report.events:
        if event["kind"] == "case":
            case = event["case"]
            found[case] = []
        elif event["kind"] == "case done":
            case = ""
        elif event["kind"] == "collective" and case:
            found[case].append(event)
    return found


def step_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The mean over the step's samples, clipped, synchronized once."""
    for case in CASES:
        rows = [report.answer[case] for report in reports]
        count, shares = rows[0]["count"], [row["share"] for row in rows]
        said = f"a step of {count} samples, {some(shares)} on the ranks"
        for rank, row in enumerate(rows):
            if row["largest"] > row["limit"]:
                found = f"{said}: with micro_batch_size={row['limit']}, rank {rank} sent "
                yield TABLE("micro-batch-too-large", f"{found}{row['largest']} at once")
                return
        for rank, row in enumerate(rows):
            apart, name = largest_difference(rows[0]["after"], row["after"])
            if apart > 1e-6:
                found = f"{said}: afterward, ranks 0 and {rank} differ by {apart:.2g} in {name}"
                yield TABLE("ranks-step-apart", found)
                return
        apart, name = largest_difference(rows[0]["after"], rows[0]["expected"])
        if not apart <= 2e-5:
            how = "longer than 1" if case == "large" else "shorter than 1"
            found = (
                f"{said}, with a gradient {how}: the weights differ from those after the same "
            )
            yield TABLE("wrong-gradient", f"{found}step on one rank by {apart:.2g} in {name}")
            return
        parts = sum(row["part"] for row in rows)
        if abs(parts - rows[0]["loss"]) > 1e-4 * max(1, abs(rows[0]["loss"])):
            found = (
                f"{said}: the ranks returned {some([round(r['part'], 4) for r in rows])}; the "
            )
            yield TABLE("wrong-loss", f"{found}mean loss is {rows[0]['loss']:.4f}")
            return
    size = reports[0].answer["parameters"]
    for case, events in collectives_by_case(reports[0]).items():
        elements = sum(event["elements"] for event in events)
        if elements > 1.5 * size + 64:
            share, limit = (reports[0].answer[case][name] for name in ("share", "limit"))
            found = f"the model has {size} parameters, and rank 0 sent {elements} numbers in a "
            found += f"step of {-(-share // limit)} micro-batches"
            yield TABLE("syncs-too-often", found)
            return
    ends = [report.answer["nonfinite"] for report in reports]
    if not all(end["raised"] for end in ends) or any(end["changed"] for end in ends):
        raised = [rank for rank, end in enumerate(ends) if end["raised"]]
        changed = "changed" if any(end["changed"] for end in ends) else "unchanged"
        found = f"one sample on rank 0 was infinite: ranks {some(raised) or 'none'} of "
        found += f"{len(ends)} raised, and the weights are {changed}"
        yield TABLE("nonfinite-step", found)

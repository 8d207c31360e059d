"""The model with its learning rate, and the metrics."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rehearsal.engine.rank import RankContext

from .draws import plan_of


def batch_of(dataset: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first samples, stacked: inputs (B, D) and labels (B,)."""
    inputs, labels = zip(*(dataset[i] for i in range(count)), strict=True)
    return torch.stack(inputs), torch.stack([torch.as_tensor(label) for label in labels])


def model_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """One batch through the model, a few steps of AdamW, and the learning rates."""
    plan = plan_of(context.seed)

    def config(**changes: Any) -> Any:
        return learner.TrainConfig(**plan.settings(context.folder / "model", **changes))

    cfg = config()
    inputs, labels = batch_of(learner.ToyClassificationDataset(cfg), plan.num_samples)
    torch.manual_seed(plan.seed)
    model, dry = learner.TinyNet(cfg), learner.TinyNet(config(dropout=0))
    answer: dict[str, Any] = {"shape": list(model(inputs).shape), "batch": len(labels)}
    answer["classes"] = int(labels.max()) + 1
    if len(answer["shape"]) != 2 or answer["shape"][1] < answer["classes"]:
        return answer
    answer["noise"] = {
        "with dropout": spread(model.train(), inputs),
        "with dropout, in eval mode": spread(model.eval(), inputs),
        "with dropout=0": spread(dry.train(), inputs),
    }
    optimizer = torch.optim.AdamW(dry.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(dry(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    answer["losses"] = [losses[0], losses[-1]]
    answer["unused"] = [n for n, p in dry.named_parameters() if p.grad is None]
    steps = list(range(1, plan.total + 1))
    rates = [float(learner.learning_rate_at(cfg, step)) for step in steps]
    order = random.Random(context.seed).sample(steps, len(steps))
    again = {step: float(learner.learning_rate_at(cfg, step)) for step in order}
    return answer | {
        "rates": rates,
        "rates again": [again[step] for step in steps],
        "peak": cfg.learning_rate,
        "warmup": cfg.warmup_steps,
    }


def spread(model: nn.Module, inputs: torch.Tensor) -> float:
    """How far apart two passes over one batch are."""
    with torch.no_grad():
        return float((model(inputs) - model(inputs)).abs().max())


def metrics_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """A step of known phases, and what a kill right after two lines would leave."""
    timers = learner.StepTimers()
    began = time.perf_counter()
    for phase, seconds in (("forward", 0.007), ("backward", 0.012), ("forward", 0.007)):
        time.sleep(seconds)
        timers.end(phase)
    time.sleep(0.009)
    timers.end("optimizer")
    wall = time.perf_counter() - began
    answer: dict[str, Any] = {"phases": dict(timers.phases), "wall": wall}
    path = context.folder / "lines.jsonl"
    facts: list[dict[str, Any]] = [
        {"event": "first", "text": 'two\nlines and a "quote"', "step": 9},
        {"event": "second", "samples": [3, 1, 2], "phases": {"forward": 0.5}},
    ]
    error = ""
    with open(path, "a") as file:
        try:
            for fields in facts:
                learner.log_rank_event(file, **fields)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        # Before the file is closed: a kill would leave just this, without what is in a buffer.
        lines = path.read_text().split("\n")
    return answer | {"lines": lines, "facts": facts, "error": error}

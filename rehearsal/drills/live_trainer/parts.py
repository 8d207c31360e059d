"""The model with its learning rate, and the metrics."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rehearsal.engine.rank import RankContext

from .draws import SmallRun, phases_of, rates_of_check


def batch_of(dataset: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first samples, stacked: inputs (B, D) and labels (B,)."""
    inputs, labels = zip(*(dataset[i] for i in range(count)), strict=True)
    return torch.stack(inputs), torch.stack([torch.as_tensor(label) for label in labels])


def model_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """One batch through the model, a few steps of AdamW, and the learning rates."""

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
    answer["rates"] = [
        rates_of(learner, config(**asked.settings), asked.steps, plan.seed)
        for asked in rates_of_check(plan)
    ]
    return answer


def rates_of(
    learner: SimpleNamespace, cfg: Any, steps: Sequence[int], seed: int
) -> dict[str, Any]:
    """The learning rates of some steps; again, asked for in another order."""
    rates: list[list[float]] = []
    for order in (steps, random.Random(seed).sample(steps, len(steps))):
        found = {}
        for step in order:
            try:
                found[step] = float(learner.learning_rate_at(cfg, step))
            except NotImplementedError:
                raise
            except Exception as error:
                return {"raised": f"{type(error).__name__}: {error}"[:160], "step": step}
        rates.append([found[step] for step in steps])
    return {"rates": rates[0], "again": rates[1]}


def spread(model: nn.Module, inputs: torch.Tensor) -> float:
    """How far apart two passes over one batch are."""
    with torch.no_grad():
        return float((model(inputs) - model(inputs)).abs().max())


def metrics_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """A step of known phases, and what a kill right after two lines would leave.

    Between which two moments a phase ended is known for certain, however slow the machine is:
    the clock is read right before the call and right after it.
    """
    clock, phases = time.perf_counter, phases_of(plan)
    marks = [clock()]
    timers = learner.StepTimers()
    marks.append(clock())
    for phase, seconds in phases:
        time.sleep(seconds)
        marks.append(clock())
        timers.end(phase)
        marks.append(clock())
    seconds_of = [
        [name, marks[2 * n] - marks[2 * n - 1], marks[2 * n + 1] - marks[2 * n - 2]]
        for n, (name, _) in enumerate(phases, 1)
    ]
    answer: dict[str, Any] = {"phases": dict(timers.phases), "between": seconds_of}
    path = context.folder / "lines.jsonl"
    draw = random.Random(f"lines {plan.seed}")
    facts: list[dict[str, Any]] = [
        {"event": "first", "text": 'two\nlines and a "quote"', "step": draw.randrange(1000)},
        {
            "event": "second",
            "samples": draw.sample(range(100), 3),
            "phases": {phases[0].name: draw.random()},
        },
    ]
    error = ""
    began = time.time()
    with open(path, "a") as file:
        try:
            for fields in facts:
                learner.log_rank_event(file, **fields)
        except NotImplementedError:
            raise
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        # Before the file is closed: a kill would leave just this, without what is in a buffer.
        lines = path.read_text().split("\n")
    written = [began, time.time()]
    return answer | {"lines": lines, "facts": facts, "error": error, "written": written}

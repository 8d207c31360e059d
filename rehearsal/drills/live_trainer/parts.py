"""The model with its learning rate, and the metrics."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from .cells import Earlier
from .draws import plan_of
from .findings import TABLE

# ---------------------------------------------------------------- model


def batch_of(dataset: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first samples, one below the other: inputs (B, D) and labels (B,)."""
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
    """How far two passes of one batch are apart."""
    with torch.no_grad():
        return float((model(inputs) - model(inputs)).abs().max())


def model_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A classifier with dropout that learns, and a learning rate that is a function."""
    answer = reports[0].answer
    shape, batch, classes = answer["shape"], answer["batch"], answer["classes"]
    if len(shape) != 2 or shape[0] != batch or shape[1] < classes:
        found = (
            f"a batch of {batch} samples with {classes} classes gives logits of shape {shape}"
        )
        yield TABLE("wrong-shape", found)
        return
    for what, apart in answer["noise"].items():
        if (apart > 0) != (what == "with dropout"):
            found = f"{what}, two passes of one batch differ by {apart:.2g}"
            yield TABLE("wrong-dropout", found)
    if answer["unused"]:
        found = f"after a backward pass, {some(answer['unused'])} have no gradient"
        yield TABLE("does-not-learn", found, "at what takes no part in the logits")
    first, last = answer["losses"]
    if not last < 0.8 * first:
        found = f"60 steps of AdamW on one batch took the loss from {first:.3f} to {last:.3f}"
        yield TABLE("does-not-learn", found)
    yield from rate_findings(answer)


def rate_findings(answer: Any) -> Iterator[Finding]:
    """Up along a line, then down."""
    rates, peak, warmup = answer["rates"], answer["peak"], answer["warmup"]
    if rates != answer["rates again"]:
        found = "asked again in another order, learning_rate_at gives other values"
        yield TABLE("wrong-rate", found, "at what it remembers")
        return
    for step, rate in enumerate(rates, 1):
        before = rates[step - 2] if step > 1 else 0.0
        said = (
            f"with learning_rate={peak:g} and warmup_steps={warmup}, step {step} has {rate:.4g}"
        )
        wanted = peak * step / warmup
        if step <= warmup and abs(rate - wanted) > 1e-6 * peak:
            yield TABLE("wrong-rate", f"{said}; a line from 0 would have {wanted:.4g}")
            return
        if step > warmup and not 0 < rate < before:
            yield TABLE("wrong-rate", f"{said} after {before:.4g}; it should have fallen")
            return


# ---------------------------------------------------------------- metrics


def metrics_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """A step of known phases, and a process that is killed after its line."""
    timers = learner.StepTimers()
    began = time.perf_counter()
    for phase, seconds in (("forward", 0.012), ("backward", 0.02), ("forward", 0.012)):
        time.sleep(seconds)
        timers.end(phase)
    time.sleep(0.015)
    timers.end("optimizer")
    wall = time.perf_counter() - began
    answer: dict[str, Any] = {"phases": dict(timers.phases), "wall": wall}
    path = context.folder / "lines.jsonl"
    facts: list[dict[str, Any]] = [
        {"event": "first", "text": 'two\nlines and a "quote"', "step": 9},
        {"event": "second", "samples": [3, 1, 2], "phases": {"forward": 0.5}},
    ]
    with open(path, "a") as file:
        pid = os.fork()
        if pid == 0:
            try:
                for fields in facts:
                    learner.log_rank_event(file, **fields)
                os.kill(os.getpid(), signal.SIGKILL)
            except BaseException as error:
                Path(f"{path}.error").write_text(f"{type(error).__name__}: {error}")
            os._exit(3)
        os.waitpid(pid, 0)
    said = Path(f"{path}.error")
    return answer | {
        "lines": path.read_text().split("\n"),
        "facts": facts,
        "error": said.read_text() if said.exists() else "",
    }


def metrics_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The phases add up, and a line survives."""
    answer = reports[0].answer
    phases, wall = answer["phases"], answer["wall"]
    total = sum(phases.values())
    shown = {name: round(seconds, 4) for name, seconds in phases.items()}
    if not 0.9 * wall < total < 1.1 * wall:
        found = f"a step took {wall:.3f} s, and its phases {shown} add up to {total:.3f} s"
        yield TABLE("phases-do-not-add-up", found)
        return
    least = {"forward": 0.024, "backward": 0.02, "optimizer": 0.015}
    short = [name for name in least if phases.get(name, 0.0) < 0.9 * least[name]]
    if short:
        found = (
            f"{short[0]} took {least[short[0]]} s in two calls" if short == ["forward"] else ""
        )
        found = found or f"{short[0]} took {least[short[0]]} s"
        yield TABLE("wrong-phase", f"{found}, and phases says {shown}")
    if answer["error"]:
        yield TABLE("line-lost", f"log_rank_event raised {answer['error']}")
        return
    lines = [line for line in answer["lines"] if line]
    try:
        read = [json.loads(line) for line in lines]
    except ValueError:
        read = None
    if read is None or len(lines) != len(answer["facts"]):
        found = f"two events and a SIGKILL later, the file has {len(lines)} lines"
        if lines and read is None:
            found += f", one of them {lines[0][:60]!r}"
        yield TABLE("line-lost", found)
        return
    for line, fields in zip(read, answer["facts"], strict=True):
        wrong = [name for name, value in fields.items() if line.get(name) != value]
        stamp = line.get("time")
        if wrong or not isinstance(stamp, float) or abs(stamp - time.time()) > 600:
            found = f"the line of {fields} is {str(line)[:160]}"
            yield TABLE("wrong-line", found)
            return

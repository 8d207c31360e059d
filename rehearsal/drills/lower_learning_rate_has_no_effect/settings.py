"""What a grader of changed settings needs: an earlier call's file, and the run as it should be.

A run's calls may differ in learning rate and weight decay. Where it stands goes over from one
to the next; what it was told does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.harness import OddNet, marked_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

NUM_SAMPLES, GLOBAL_BATCH_SIZE = 13, 5
RULE = "a call's own settings hold from its first step on; where the run stands goes on"

# ---------------------------------------------------------------- in the ranks


class Call(NamedTuple):
    """The settings of one call, and the step with which it begins."""

    start: int
    lr: float
    weight_decay: float

    def settings(self, name: str, step: int) -> tuple[float, float]:
        """Rate and decay of a parameter of OddNet in a step."""
        if name.endswith("weight"):
            return self.lr * factor(step), self.weight_decay
        return 2 * self.lr * factor(step), 0.0


def factor(step: int) -> float:
    """A warm-up, then a decay."""
    return min(1.0, (step + 1) / 3) * float(0.9**step)


def samples_of(step: int) -> list[int]:
    """What a step trains, on all ranks together."""
    first = step * GLOBAL_BATCH_SIZE
    return [i % NUM_SAMPLES for i in range(first, first + GLOBAL_BATCH_SIZE)]


def go_through(
    calls: Sequence[Call], steps: int, *, forgets: bool = False, file: Path | None = None
) -> list[dict[str, str]]:
    """The weights after each step, in one process.

    Args:
        forgets: begins each call with a new optimizer.
        file: writes a checkpoint of the end there, as the drill's broken trainer does.
    """
    model, (inputs, targets) = OddNet(seed=0), marked_samples(NUM_SAMPLES)
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.endswith("weight") == is_first]}
        for is_first in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=calls[0].lr)
    weights = []
    for step in range(steps):
        call = [call for call in calls if call.start <= step][-1]
        if forgets and step == call.start:
            optimizer = torch.optim.AdamW(groups, lr=call.lr)
        for group, name in zip(optimizer.param_groups, ("weight", "bias"), strict=True):
            group["lr"], group["weight_decay"] = call.settings(name, step)
        optimizer.zero_grad()
        samples = samples_of(step)
        errors = (model(inputs[samples]) - targets[samples]).pow(2)
        (errors.sum() / len(samples)).backward()
        optimizer.step()
        weights.append(weights_of(model))
    if file:
        write_checkpoint(file, model, optimizer, calls[0], steps)
    return weights


def write_checkpoint(
    file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, call: Call, steps: int
) -> None:
    """As torch's schedule and optimizer write themselves down."""
    for group, scale in zip(optimizer.param_groups, (1, 2), strict=True):
        group["lr"] = group["initial_lr"] = scale * call.lr
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=steps - 1)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**state, "step": steps}, file)


def watch_settings(context: RankContext, model: nn.Module) -> None:
    """Write down with which rate and decay each parameter steps, and the weights afterwards."""
    names = {id(p): name for name, p in model.named_parameters() if name != "unused"}

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        settings = {
            names[id(p)]: [float(group["lr"]), float(group["weight_decay"])]
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) in names
        }
        context.record("before_step", settings=settings)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(
        lambda *_: context.record("stepped", weights=weights_of(model))
    )


# ---------------------------------------------------------------- in the judges


def setting_findings(
    calls: Sequence[Call], step: int, name: str, settings: Sequence[float], about: str
) -> Iterator[Finding]:
    """Rate and decay of one parameter in one step."""
    now, other = calls[-1], "bias" if name.endswith("weight") else "weight"
    ways = [("", now.settings(name, step))]
    ways += [("old", call.settings(name, step)) for call in calls[:-1]]
    ways += [("another", now.settings(other, step))]
    ways += [("again", now.settings(name, step - now.start))]
    right = ways[0][1]
    for at, what in enumerate(("rate", "decay")):
        close = [
            way for way, pair in ways if math.isclose(pair[at], settings[at], rel_tol=1e-5)
        ]
        if "" in close:
            continue
        codes = {
            "old": f"old-{what}",
            "another": "settings-of-another-group",
            "again": "schedule-begins-again",
        }
        code = codes[close[0]] if close else "other-rate"
        found = f"{about}{what} {settings[at]:.4g}; this call asks for {right[at]:.4g}"
        if at == 0:
            found += f", {factor(step):.4g} of {right[at] / factor(step):.4g}"
        look = "at all that a state dict brings back, and at who sets it, when, once more"
        yield Finding(code, found, RULE, look)
        return

"""The run as it should be, or with a mistake in its last call; an earlier call's file.

Runs in the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of
from .calls import Call, Data, Settings, factor


def go_through(
    data: Data,
    calls: Sequence[Call],
    steps: int,
    *,
    settings: Settings | None = None,
    forgets: bool = False,
    file: Path | None = None,
) -> list[dict[str, str]]:
    """The weights after each step, in one process.

    Args:
        settings: what the last call uses; by default, what it was given.
        forgets: begins each call with a new optimizer.
        file: writes the final checkpoint there, as the drill's broken trainer would.
    """
    model, (inputs, targets) = OddNet(seed=0), marked_samples(data.num_samples)
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
        of_call = settings if settings and call == calls[-1] else call.settings
        for group, name in zip(optimizer.param_groups, ("weight", "bias"), strict=True):
            group["lr"], group["weight_decay"] = of_call(name, step)
        optimizer.zero_grad()
        samples = data.samples_of(step)
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
    """A checkpoint as torch's schedule and optimizer write it."""
    for group, scale in zip(optimizer.param_groups, (1, 2), strict=True):
        group["lr"] = group["initial_lr"] = scale * call.lr
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=steps - 1)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**state, "step": steps}, file)

"""Records each step of a start, and ends a rank in the middle of a save.

Runs in the ranks; ``kit.judge.recorded_run`` reads what is recorded.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.engine.rank import LIMITS, RankContext
from rehearsal.kit.observe.random_state import random_state_digest
from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of, weights_of

TORN_BYTES = 700  # a file longer than this is cut here


class DropoutNet(OddNet):
    """OddNet with dropout: what a step does depends on the rank's random state."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.inner(inputs)), 0.3, self.training)
        outputs: Tensor = self.outer(hidden)
        return outputs


@contextmanager
def watched(context: RankContext, model: nn.Module, folder: str) -> Iterator[None]:
    """Record each step of one start: samples, random state, learning rate, weights."""

    def forward(batch: Tensor) -> None:
        if torch.is_grad_enabled():
            context.record("forward", samples=ids_of(batch), rng=random_state_digest())

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        lr = float(optimizer.param_groups[0]["lr"])
        context.record("before_step", lr=lr, weights=weights_of(model))

    def after(*_: Any) -> None:
        context.record("stepped", weights=weights_of(model))

    context.record("start", folder=folder)
    hooks = [
        before_forward(model, forward),
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    context.record("end", folder=folder, weights=weights_of(model))


@contextmanager
def strikes_in_save(context: RankContext, *, after_steps: int, tears: bool) -> Iterator[None]:
    """Count file operations from the save after ``after_steps`` steps on, as ``late_file``.

    Args:
        tears: also end the process as soon as it writes more than ``TORN_BYTES`` to a file,
            however it writes: the operating system does it, in the middle of the write.
    """
    record, steps = context.record, 0

    def watching(kind: str, **facts: Any) -> None:
        nonlocal steps
        allow(LIMITS[resource.RLIMIT_FSIZE])  # the record itself is a longer file
        record(kind, **facts)
        steps += kind == "optimizer_step"
        if kind == "file" and facts["path"] and steps >= after_steps:
            record("late_file")
        if tears and steps >= after_steps:
            allow(TORN_BYTES)

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it otherwise
    context.record = watching  # type: ignore[method-assign]
    try:
        yield
    finally:
        context.record = record  # type: ignore[method-assign]
        allow(LIMITS[resource.RLIMIT_FSIZE])


def allow(file_bytes: int) -> None:
    """Set the size up to which this process may write a file."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (file_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def copy_folder(context: RankContext, source: str, target: str) -> None:
    """Copy a run, unseen by the recorder. Rank 0 does it; the group waits."""
    import shutil

    import torch.distributed as dist

    context.is_armed = False
    if context.rank == 0:
        shutil.copytree(context.folder / source, context.folder / target)
    dist.barrier()
    context.is_armed = True

"""Records each step of a start, and keeps what a kill at some moment of it would leave.

Runs in the ranks; ``kit.judge.recorded_run`` reads what is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, drawn_moments
from rehearsal.kit.observe.random_state import random_state_digest
from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of, weights_of

from .draws import Plan

MOST = 8  # moments of one rank, after its first save, from which a check resumes
MOST_AGAIN = 4  # moments of one rank, after a start from a torn file


class DropoutNet(OddNet):
    """OddNet with dropout: what a step does depends on the rank's random state."""

    def __init__(self, dropout: float, seed: int) -> None:
        super().__init__(seed=seed)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(inputs))
        hidden = nn.functional.dropout(hidden, self.dropout, self.training)
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


def keep_moments(
    context: RankContext, plan: Plan, moments: Sequence[Moment]
) -> list[tuple[str, str, int]]:
    """Write down some moments of this rank, each in a folder for a later job of the check.

    One more copy of a torn file, as "torn-...", is for a start that is killed, too.

    Returns for each: the folder, where the kill strikes, and the steps this rank had done.
    """
    if context.rank:  # the end is the same for all ranks
        moments = [moment for moment in moments if moment.part != "end"]
    draw = random.Random(f"{plan.seed} moments of rank {context.rank}")
    # Of a later save, with something to lose; of the first one, with nothing to fall back on.
    first = [moment for moment in moments if moment.note <= plan.dues[0]]
    later = [moment for moment in moments if moment.note > plan.dues[0]]
    chosen = drawn_moments(later, MOST, draw) + drawn_moments(first, 1, draw)
    kept = restored(context, "moment", chosen)
    # A save is to come after the one that is torn.
    torn = [m for m in later if m.part == "half" and m.note <= plan.dues[-2]]
    return kept + restored(context, "torn", drawn_moments(torn, 1, draw))


def keep_moments_again(
    context: RankContext, plan: Plan, torn: str, moments: Sequence[Moment]
) -> list[tuple[str, str, int]]:
    """The same for the first save of a start that began with a torn file."""
    first = [moment for moment in moments if moment.note <= plan.save_every]
    if context.rank:
        first = [moment for moment in first if moment.part != "end"]
    draw = random.Random(f"{plan.seed} {torn} again, on rank {context.rank}")
    return restored(context, f"again-{torn}", drawn_moments(first, MOST_AGAIN, draw))


def restored(
    context: RankContext, name: str, moments: Sequence[tuple[int, Moment]]
) -> list[tuple[str, str, int]]:
    """Write down moments of this rank, unseen by the recorder."""
    kept = []
    context.is_armed = False
    for number, (_, moment) in enumerate(moments):
        folder = f"{name}-{context.rank}-{number}"
        moment.restore(context.folder / folder)
        kept.append((folder, moment.where, moment.note))
    context.is_armed = True
    return kept


def folders_named(context: RankContext, name: str) -> list[str]:
    """The folders of all ranks' moments of a name. Collective: waits until all are written."""
    dist.barrier()
    return sorted(path.name for path in context.folder.glob(f"{name}-*"))


@contextmanager
def strikes_in_save(context: RankContext, *, after_steps: int) -> Iterator[None]:
    """Count file operations from the save after ``after_steps`` steps on, as ``late_file``."""
    record, steps = context.record, 0

    def watching(kind: str, **facts: Any) -> None:
        nonlocal steps
        record(kind, **facts)
        steps += kind == "optimizer_step"
        if kind == "file" and facts["path"] and steps >= after_steps:
            record("late_file")

    context.record = watching  # type: ignore[method-assign]
    try:
        yield
    finally:
        context.record = record  # type: ignore[method-assign]


def contents(context: RankContext, folder: str) -> dict[str, list[Any]]:
    """Every file below a folder, by path: a digest of its bytes, and when it was written.

    Collective: no rank looks before all have arrived, and none goes on before all have looked.
    """
    import hashlib

    dist.barrier()
    found = {}
    for path in sorted((context.folder / folder).rglob("*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(context.folder / folder))] = [
                digest,
                path.stat().st_mtime_ns,
            ]
    dist.barrier()
    return found


def copy_folder(context: RankContext, source: str, target: str) -> None:
    """Copy a run, unseen by the recorder. Rank 0 does it; the group waits."""
    import shutil

    context.is_armed = False
    if context.rank == 0:
        shutil.copytree(context.folder / source, context.folder / target)
    dist.barrier()
    context.is_armed = True

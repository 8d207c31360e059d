"""The last stages' bodies: the learner's trainer alone, on ranks, killed and resumed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, watch_moments

from .draws import NOISY_SEED, SmallRun
from .saves import different, no_sync
from .watch import (
    digest_of,
    files_of,
    ledger_of,
    plain,
    start,
    start_and_stop,
    strike_before_line,
    strike_in_save,
)

SYNC_S = 0.002  # what an fsync takes here, so that a save takes time on every disk


def slow_sync(_: object) -> None:
    """Stands in for os.fsync."""
    time.sleep(SYNC_S)


def forget_torchrun() -> None:
    """From here on, this process is one that no launcher started."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


def alone_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """From start to end without torchrun; then the finished run again."""
    forget_torchrun()
    os.fsync = slow_sync  # type: ignore[assignment]
    answer = start(context, learner, plan, "alone", compares=True, dropout=0)
    run_dir = context.folder / "alone"
    cfg = learner.TrainConfig(**plan.settings(run_dir, dropout=0))
    model = learner.TinyNet(cfg)
    optimizer = torch.optim.AdamW(model.parameters())
    context.is_armed = False
    path = learner.latest_checkpoint_path(Path(run_dir, "checkpoints"))
    saved = path and learner.restore_checkpoint(path, model, optimizer)
    before = files_of(run_dir)
    again = plain(learner.run(cfg))
    context.record("ends again")
    after = files_of(run_dir)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    answer |= {"saved": [saved, digest_of(model)], "again": again, "changed": changed}
    answer["starts"] = []
    cfg = learner.TrainConfig(**plan.settings(context.folder / "starts"))
    for steps in plan.starts:
        error = start_and_stop(context, learner, cfg, steps)
        lines = [line for _, line in ledger_of(context.folder / "starts")]
        answer["starts"].append([error, lines[-1] if lines else None])
    return answer


def published_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Without torchrun, killed as soon as the first save is published; then the next start.

    What a kill leaves is what the folder holds at that moment, so nobody has to die for it.
    """
    forget_torchrun()
    os.fsync = no_sync  # type: ignore[assignment]
    run_dir, first = context.folder / "published", plan.saves[0]
    cfg = learner.TrainConfig(**plan.settings(run_dir))
    with watch_moments(run_dir, lambda: context.count("optimizer_step")) as moments:
        error = start_and_stop(context, learner, cfg, first)
    if error:
        return {"raised": error, "lines": []}
    run_dir.rename(run_dir.with_name("stopped"))

    def has_published(number: int, moment: Moment) -> bool:
        folder = moment.restore(context.folder / "published-moments" / str(number))
        return newest_step(learner, cfg, folder) == first

    in_save = [moment for moment in different(moments) if moment.note == first]
    at = (moment for number, moment in enumerate(in_save) if has_published(number, moment))
    next(at, moments[-1]).restore(run_dir)
    error = start_and_stop(context, learner, cfg, plan.total)
    return {"raised": error, "lines": ledger_of(run_dir)}


def newest_step(learner: SimpleNamespace, cfg: Any, run_dir: Path) -> int | None:
    """The step from which the next start would resume; None if it finds no checkpoint."""
    model, step = learner.TinyNet(cfg), None
    optimizer = torch.optim.AdamW(model.parameters())
    with suppress(Exception):  # in the middle of a save, there may be nothing to find yet
        path = learner.latest_checkpoint_path(run_dir / "checkpoints")
        step = path and learner.restore_checkpoint(path, model, optimizer)
    return step


def together_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """On two ranks, without dropout. A rank dies after a step, before its ledger line."""
    strike_before_line(context, plan.silent_at)
    return start(context, learner, plan, "together", compares=True, dropout=0)


def uninterrupted_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """All of it on two ranks, with dropout."""
    return start(context, learner, plan, "uninterrupted", seed=NOISY_SEED)


def killed_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The same; a rank dies in a save."""
    strike_in_save(context, plan.kill_at, plan.kill_operation)
    return start(context, learner, plan, "killed", seed=NOISY_SEED)


def resumed_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The next start."""
    return start(context, learner, plan, "killed", seed=NOISY_SEED)


def other_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The next start of the run whose ledger lacks a line, on a different number of ranks."""
    return start(context, learner, plan, "together", dropout=0)

"""The jobs of a check, inside the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.observe.epoch_run import expected_weights, start_in_folder, train_whole
from rehearsal.kit.observe.starts import kept_folders


def whole(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The uninterrupted run; of a run on one rank, each save is tried."""
    context.init_group()
    is_alone = run.world_size == 1
    most = 8 if is_alone else 3
    return train_whole(run, context, learner, at_most=most, each_save=is_alone)


def killed(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """A job of which a rank dies."""
    context.init_group()
    start_in_folder(run, context, learner, f"{run.name}-killed")


def again(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """A start after each kill, and one of the finished run; returns the reference's weights."""
    context.init_group()
    reference = expected_weights(run, context.folder, torch.optim.AdamW)
    if run.world_size > 1:
        start_in_folder(run, context, learner, f"{run.name}-killed")
    for folder in kept_folders(context, run.name):
        start_in_folder(run, context, learner, folder)
    start_in_folder(run, context, learner, run.name)
    return reference

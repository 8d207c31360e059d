"""The jobs of a check, inside the ranks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.observe.epoch_run import expected_weights, start_in_folder, train_whole
from rehearsal.kit.observe.starts import kept_folders

CHAIN = "resized"  # the folder of the run that changes its size twice


def whole(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The uninterrupted run."""
    context.init_group()
    return train_whole(run, context, learner, at_most=3, each_save=True)


def fewer(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Starts after half of the kills; records where the whole run's steps lead."""
    context.init_group()
    sgd = partial(torch.optim.SGD, momentum=0.9)
    context.record("expected", weights=expected_weights(run, context.folder, sgd))
    resume(kept_folders(context, run.name)[::2], run, context, learner)


def begin(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """A job of which a rank dies."""
    context.init_group()
    start_in_folder(run, context, learner, CHAIN)


def end(run: EpochRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The third job, and starts after the other half of the kills."""
    context.init_group()
    start_in_folder(run, context, learner, CHAIN)
    resume(kept_folders(context, run.name)[1::2], run, context, learner)


def resume(
    folders: list[str], run: EpochRun, context: RankContext, learner: SimpleNamespace
) -> None:
    """Start in each folder."""
    for folder in folders:
        start_in_folder(run, context, learner, folder)

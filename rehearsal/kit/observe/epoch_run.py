"""Train an ``EpochRun`` with the learner's code, and with a reference; runs in the ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.observe.moments import watch_moments
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of
from rehearsal.kit.observe.starts import (
    SamplesByWeights,
    keep_kills,
    steps_of_ranks,
    watched_start,
)


def start_in_folder(
    run: EpochRun, context: RankContext, learner: SimpleNamespace, folder: str
) -> SamplesByWeights:
    """Call ``train`` as a new process would; returns this rank's steps."""
    model = OddNet(seed=run.seed + context.rank)
    inputs, targets = marked_samples(run.num_samples, seed=run.seed)
    path = run_folder(context, folder)
    with watched_start(context, model, folder) as steps:
        learner.train(
            model,
            inputs,
            targets,
            folder=path,
            epochs=run.epochs,
            global_batch_size=run.global_batch_size,
            checkpoint_every=run.every,
            lr=run.lr,
        )
    return steps


def train_whole(
    run: EpochRun,
    context: RankContext,
    learner: SimpleNamespace,
    *,
    at_most: int,
    each_save: bool,
) -> Any:
    """The uninterrupted run; keeps what a kill would leave at some of its moments."""
    path = run_folder(context, run.name).resolve()
    with watch_moments(path, lambda: context.count("in_step")) as moments:
        steps = start_in_folder(run, context, learner, run.name)
    context.is_armed = False
    (context.folder / f"{run.name}-steps-{context.rank}.json").write_text(json.dumps(steps))
    return keep_kills(context, moments, run.name, at_most, run.seed, each_save=each_save)


def expected_weights(
    run: EpochRun, folder: Path, optimizer_of: Callable[..., torch.optim.Optimizer]
) -> dict[str, str]:
    """The weights that the uninterrupted run's steps lead to, in float64."""
    ranks = [json.loads(path.read_text()) for path in folder.glob(f"{run.name}-steps-*.json")]
    model = OddNet(seed=run.seed).double()
    inputs, targets = (part.double() for part in marked_samples(run.num_samples, seed=run.seed))
    optimizer = optimizer_of(model.parameters(), lr=run.lr)
    for samples in steps_of_ranks(ranks):
        optimizer.zero_grad()
        loss = (model(inputs[samples]) - targets[samples]).pow(2).sum() / len(samples)
        loss.backward()
        optimizer.step()
    return weights_of(model.float())

"""The jobs of a check, inside the ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import watch_moments
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of
from rehearsal.kit.observe.starts import (
    Steps,
    keep_kills,
    kept_folders,
    steps_of_ranks,
    watched_start,
)

from .plan import Run


def start(run: Run, context: RankContext, learner: SimpleNamespace, folder: str) -> Steps:
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


def whole(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """The uninterrupted run; keeps what a kill would leave at some of its moments."""
    context.init_group()
    path = run_folder(context, run.name).resolve()
    with watch_moments(path, lambda: context.count("in_step")) as moments:
        steps = start(run, context, learner, run.name)
    context.is_armed = False
    (context.folder / f"{run.name}-steps-{context.rank}.json").write_text(json.dumps(steps))
    most, each = (3, False) if run.world_size > 1 else (8, True)
    return keep_kills(context, moments, run.name, most, run.seed, each_save=each)


def killed(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """A job of which a rank dies."""
    context.init_group()
    start(run, context, learner, f"{run.name}-killed")


def again(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """A start after each kill, and one of the finished run; returns the reference's weights."""
    context.init_group()
    reference = expected(run, context.folder)
    if run.world_size > 1:
        start(run, context, learner, f"{run.name}-killed")
    for folder in kept_folders(context, run.name):
        start(run, context, learner, folder)
    start(run, context, learner, run.name)
    return reference


def expected(run: Run, folder: Path) -> dict[str, str]:
    """The weights that the uninterrupted run's steps lead to, in float64."""
    ranks = [json.loads(path.read_text()) for path in folder.glob(f"{run.name}-steps-*.json")]
    model = OddNet(seed=run.seed).double()
    inputs, targets = (part.double() for part in marked_samples(run.num_samples, seed=run.seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.lr)
    for samples in steps_of_ranks(ranks):
        optimizer.zero_grad()
        loss = (model(inputs[samples]) - targets[samples]).pow(2).sum() / len(samples)
        loss.backward()
        optimizer.step()
    return weights_of(model.float())

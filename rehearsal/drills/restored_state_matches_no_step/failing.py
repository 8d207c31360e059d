"""Runs whose only write fails: the folder is gone, or the disk is full. In the ranks."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, before_forward, marked_samples

FULL = 2**16  # bytes that still fit in a file
FEATURES = FULL // 8  # the weights alone are larger


def broken(context: RankContext, learner: SimpleNamespace) -> dict[str, str]:
    """Train twice on one rank; each write fails. The exceptions of ``train``, "" for none."""
    context.init_group()
    raised = {}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for problem, breaks in BREAKS.items():
        try:
            train(context, learner, run_folder(context, problem), breaks)
            raised[problem] = ""
        except Exception as error:
            raised[problem] = type(error).__name__
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return raised


def train(
    context: RankContext, learner: SimpleNamespace, folder: Path, breaks: Callable[[Path], None]
) -> None:
    """Three steps; whatever was in the folder is broken as the first one begins."""
    model, (inputs, targets) = OddNet(FEATURES, seed=0), marked_samples(9, FEATURES)

    def began(_: Tensor) -> None:
        handle.remove()
        breaks(folder)

    handle = before_forward(model, began)
    learner.train(
        model,
        inputs,
        targets,
        folder=folder,
        epochs=1,
        global_batch_size=3,
        checkpoint_every=3,
        lr=1e-4,
    )


def replace_by_a_file(folder: Path) -> None:
    """From here on, nobody can create the folder again."""
    shutil.rmtree(folder)
    folder.touch()


def fill_the_disk(_: Path) -> None:
    """Files can't grow any further: ``torch.save`` then raises a RuntimeError."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))


BREAKS: dict[str, Callable[[Path], None]] = {
    "the folder had become a file": replace_by_a_file,
    "the disk was full": fill_the_disk,
}

"""A dataset that shows which process loads its samples. Runs in the ranks and their workers."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import marked_samples


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Notes for each sample that a rank loads which kind of process did it, see ``loaded``.

    Args:
        num_workers: of the job.
    """

    def __init__(self, context: RankContext, num_samples: int, num_workers: int) -> None:
        self.inputs, self.targets = marked_samples(num_samples)
        self.own = os.getpid()
        path = notes_of(context, num_workers)
        context.is_armed = False
        # Opened once: a worker inherits the file, and appends to it.
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        context.is_armed = True

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        info = get_worker_info()
        kind = "own" if os.getpid() == self.own else str(info.num_workers if info else "other")
        os.write(self.file, f"{kind}\n".encode())
        return self.inputs[index], self.targets[index]


def notes_of(context: RankContext, num_workers: int) -> Path:
    """Where a rank's samples note who loads them, in jobs with ``num_workers``."""
    return context.folder / f"loaded-with-{num_workers}-workers-{context.rank}"


def loaded(context: RankContext, num_workers: int) -> dict[str, int]:
    """How many samples each kind of process has loaded, in jobs with ``num_workers``.

    The kinds: "own", the trainer's process; "2", one of a DataLoader's two workers; "other", a
    process that isn't a DataLoader's, which counts as a worker, too.
    """
    notes = notes_of(context, num_workers)
    return dict(Counter(notes.read_text().split())) if notes.exists() else {}

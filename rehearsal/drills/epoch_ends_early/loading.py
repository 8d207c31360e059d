"""A dataset that shows which process loads its samples. Runs in the ranks and their workers."""

from __future__ import annotations

import os

from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import marked_samples


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Notes for each sample that a rank loads how many workers its loader has; 0: none."""

    def __init__(self, context: RankContext, num_samples: int) -> None:
        self.inputs, self.targets = marked_samples(num_samples)
        self.path = context.folder / f"loaded-{context.rank}"
        self.own = os.getpid()
        context.is_armed = False
        # Opened once: a worker inherits the file, and appends to it.
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        context.is_armed = True

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        info = get_worker_info()
        # A process of another kind than DataLoader's counts as a worker, too.
        kind = "own" if os.getpid() == self.own else str(info.num_workers if info else "other")
        os.write(self.file, f"{kind}\n".encode())
        return self.inputs[index], self.targets[index]

    def loaded(self) -> dict[str, int]:
        """How many samples were loaded by each kind of process."""
        kinds = self.path.read_text().split()
        return {kind: kinds.count(kind) for kind in set(kinds)}

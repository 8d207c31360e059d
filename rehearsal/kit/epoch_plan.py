"""The plan of a run of epochs that saves its position."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRun:
    """A run of ``epochs`` epochs, of which the last step takes what is left."""

    name: str
    seed: int  # of the data and of the ranks' initial weights
    world_size: int
    num_samples: int
    global_batch_size: int
    steps_per_epoch: int
    epochs: int
    every: int  # steps between two saves
    lr: float
    saves_epochs: bool = False  # there is a save at each epoch's end, too
    tolerance: float = 0.0  # for weights; 0 asks for the same bits

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.steps_per_epoch * self.epochs

    @property
    def dues(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        steps = range(1, self.steps + 1)
        ends = self.steps_per_epoch if self.saves_epochs else self.every
        return [s for s in steps if s % self.every == 0 or s % ends == 0]

    def size_of(self, step: int) -> int:
        """Samples of a step, counted from 0; an epoch's last one takes what is left."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)

    def due_by(self, step: int) -> int:
        """The last step up to ``step`` with a checkpoint due; 0 if there is none."""
        return max([0, *(due for due in self.dues if due <= step)])

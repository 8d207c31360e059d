"""Tensors that travel together: what a model of the biotech track is given for one batch.

A molecule's graph or a padded batch of proteins is several tensors, but the trainer treats a
batch as one: it moves it to a device and asks for its length.

    B  samples in a batch
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


# %%
@dataclass(frozen=True, slots=True)
class TensorBatch(ABC):
    """Base of the track's batches; a subclass adds its tensors as fields."""

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    @abstractmethod
    def placeholder(self) -> Self:
        """The smallest batch that the model accepts, on the same device.

        A rank without samples runs it, times zero, to join the sync; so the output must be
        finite.
        """

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with ``change`` applied to each of its tensors."""
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return replace(self, **{n: change(v) for n, v in values.items() if torch.is_tensor(v)})

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch on ``device``."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in pinned memory; the DataLoader calls it."""
        return self.changed(Tensor.pin_memory)

    @property
    def shape(self) -> torch.Size:
        """(B,), for ``collectives.placeholder``."""
        return torch.Size([len(self)])

    def new_zeros(self, *_: int) -> Self:
        """``placeholder``, by the name that ``collectives.placeholder`` calls."""
        return self.placeholder()

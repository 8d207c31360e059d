"""Tensors that travel together: what a model of the biotech track is given for one batch.

A molecule's graph or a padded batch of proteins is several tensors. The trainer moves a batch
to its device and asks for its length as if it were one; torch's DataLoader pins it.

    B  samples in a batch
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor


# %%
@dataclass(frozen=True, slots=True)
class TensorBatch:
    """Base of the track's batches; a subclass adds its tensors as fields."""

    num_samples: int  # B

    def __len__(self) -> int:
        return self.num_samples

    def _each(self, change: Any) -> Self:
        moved = {
            spec.name: change(value)
            for spec in fields(self)
            if isinstance(value := getattr(self, spec.name), Tensor)
        }
        others = {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name not in moved
        }
        return type(self)(**moved, **others)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch with each tensor on ``device``."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in pinned memory; the DataLoader calls it."""
        return self._each(lambda tensor: tensor.pin_memory())

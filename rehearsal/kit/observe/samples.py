"""Data and a model that show who trained what: each sample carries its id.

B  batch   D  features
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext

ID_SCALE = 1024.0  # ids up to 2**13 stay exact in float32 and small enough to train on


def marked_samples(count: int, features: int = 5, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Inputs (n, D) and targets (n, 2) of a regression; feature 0 of a sample is its id."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, generator=generator)
    inputs[:, 0] = torch.arange(count) / ID_SCALE
    targets = torch.randn(count, 2, generator=generator) + inputs[:, 1:3] * 3
    return inputs, targets


def ids_of(inputs: Tensor) -> list[int]:
    """The ids in feature 0 of ``inputs`` (B, D); a row of zeros is a placeholder, no sample."""
    rows = inputs.detach().double().flatten(0, -2)
    return (rows[rows.any(dim=1), 0] * ID_SCALE).round().long().tolist()


class OddNet(nn.Module):
    """Two layers, and a parameter that takes no part in the loss: its gradient stays None."""

    def __init__(self, features: int = 5, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(features, 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.outer = nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(torch.tanh(self.inner(inputs)))
        return outputs  # (B, 2)


def before_forward(model: nn.Module, see: Callable[[Tensor], None]) -> Any:
    """Call ``see`` with the batch of each forward pass; returns the hook's handle.

    The batch may be passed by name, as in ``model(inputs=batch)``.
    """

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
        see(next(iter((*inputs, *named.values()))))

    return model.register_forward_pre_hook(hook, with_kwargs=True)


def watch_samples(context: RankContext, model: nn.Module) -> None:
    """Record which samples go through ``model`` to be trained, read from the batch itself."""

    def seen(batch: Tensor) -> None:
        if torch.is_grad_enabled():
            context.record("forward", samples=ids_of(batch))

    before_forward(model, seen)


def weights_of(model: nn.Module) -> dict[str, str]:
    """Every parameter and buffer, bit for bit."""
    return {
        name.removeprefix("module."): tensor.detach().cpu().contiguous().numpy().tobytes().hex()
        for name, tensor in model.state_dict().items()
    }

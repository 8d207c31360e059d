"""A model that records the noise that it draws. Runs in the ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import OddNet

SCALE = 0.3  # of the noise in the outputs


class NoisyNet(OddNet):
    """Adds noise from torch's random state, as dropout does, and records it."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(seed=context.rank)
        self.context = context

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.randn(2)
        self.context.record("noise", values=noise.tolist())
        return super().forward(inputs) + SCALE * noise  # (B, 2)

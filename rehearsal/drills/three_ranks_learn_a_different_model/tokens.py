"""Tokens that tell what they weighed in their step: each moves a weight that no other does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH = 8  # tokens of a micro-batch, padding included
LR = 0.25


class Table(nn.Module):
    """A weight for each token id, in two parameters, and one that takes no part in the loss."""

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        values = torch.sin(torch.arange(num_ids) * 1.0)
        self.even = nn.Parameter(values[::2].clone())
        self.odd = nn.Parameter(values[1::2].clone())
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        """The ids' values, (B, T)."""
        return torch.where(ids % 2 == 0, self.even[ids // 2], self.odd[ids // 2])

    def values(self) -> Tensor:
        """All weights, by id."""
        return torch.stack([self.even, self.odd], 1).detach().flatten()


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Micro-batches of ``least`` to WIDTH tokens, unequal over steps and ranks."""

    world_size: int
    grad_accum_steps: int
    least: int
    steps: int = 2

    def num_tokens(self, step: int, micro_step: int, rank: int) -> int:
        """How many tokens are no padding."""
        return max(self.least, (5 * step + 3 * micro_step + 7 * rank) % (WIDTH + 1))

    def first_id(self, step: int, micro_step: int = 0, rank: int = 0) -> int:
        """No id is used twice: so each weight moves in one step, for one token."""
        micro_batch = step * self.grad_accum_steps + micro_step
        return (micro_batch * self.world_size + rank) * WIDTH

    def model(self) -> Table:
        """With a weight for each token of all steps."""
        return Table(self.first_id(self.steps))

    def micro_batches(self, rank: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """A rank's ids, targets and masks, each (2, WIDTH / 2)."""
        for step in range(self.steps):
            for micro_step in range(self.grad_accum_steps):
                ids = self.first_id(step, micro_step, rank) + torch.arange(WIDTH)
                mask = torch.arange(WIDTH) < self.num_tokens(step, micro_step, rank)
                targets = torch.sin(ids * 1.0) + 2  # an error of 2 for each token
                yield ids.view(2, -1), targets.view(2, -1), mask.view(2, -1).float()

    def shares(self, model: Table) -> list[float]:
        """By id: by which part of its own gradient SGD has moved the token's weight."""
        moved = model.values() - self.model().values()
        shares: list[float] = (moved / (LR * 2 * 2)).tolist()
        return shares

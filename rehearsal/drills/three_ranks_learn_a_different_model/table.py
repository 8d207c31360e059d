"""Tokens that show what they weighed in their step: each moves a weight that no other does.

Runs in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .corpus import WIDTH, Corpus

LR = 0.25


class Table(nn.Module):
    """A weight for each token id, in two parameters, and a third parameter that is unused."""

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


def table_for(corpus: Corpus) -> Table:
    """A table with a weight for each token of all steps."""
    return Table(corpus.first_id(corpus.steps))


def micro_batches_of(corpus: Corpus, rank: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A rank's ids, targets and masks, each (2, WIDTH / 2)."""
    for step in range(corpus.steps):
        for micro_step in range(corpus.grad_accum_steps):
            ids = corpus.first_id(step, micro_step, rank) + torch.arange(WIDTH)
            mask = torch.arange(WIDTH) < corpus.num_tokens(step, micro_step, rank)
            targets = torch.sin(ids * 1.0) + 2  # an error of 2 for each token
            yield ids.view(2, -1), targets.view(2, -1), mask.view(2, -1).float()


def shares_of(corpus: Corpus, model: Table) -> list[float]:
    """By id: the fraction of its own gradient by which SGD has moved the token's weight."""
    moved = model.values() - table_for(corpus).values()
    shares: list[float] = (moved / (LR * 2 * 2)).tolist()
    return shares

"""Tokens that show what they weighed in their step: each moves a weight that no other does.

Runs in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .corpus import Corpus


class Table(nn.Module):
    """A weight for each token id, in two parameters, and a third parameter that is unused."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.even = nn.Parameter(values[::2].clone())
        self.odd = nn.Parameter(values[1::2].clone())
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        """The ids' values, (B, T)."""
        return torch.where(ids % 2 == 0, self.even[ids // 2], self.odd[ids // 2])

    def values(self) -> Tensor:
        """All weights, by id."""
        even, odd = self.even.detach(), self.odd.detach()
        values = torch.zeros(len(even) + len(odd))
        values[::2], values[1::2] = even, odd
        return values


def initial_values(corpus: Corpus) -> Tensor:
    """A weight for each place in all micro-batches."""
    generator = torch.Generator().manual_seed(corpus.seed)
    return torch.rand(num_ids(corpus), generator=generator) * 2 - 1


def num_ids(corpus: Corpus) -> int:
    """As many as there are places; an even number, for the table's two parameters."""
    places = corpus.first_id(corpus.steps)
    return places + places % 2


def errors_of(corpus: Corpus) -> Tensor:
    """By id: how far the output is above its target; 0.5 to 1.5, above or below."""
    generator = torch.Generator().manual_seed(corpus.seed + 1)
    size = torch.rand(num_ids(corpus), generator=generator) + 0.5
    return torch.where(torch.rand(len(size), generator=generator) < 0.5, size, -size)


def micro_batches_of(corpus: Corpus, rank: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A rank's ids, targets and masks, each (rows, columns)."""
    shape = corpus.rows, corpus.columns
    targets = initial_values(corpus) - errors_of(corpus)
    for step in range(corpus.steps):
        for micro_step in range(corpus.grad_accum_steps):
            ids = corpus.first_id(step, micro_step, rank) + torch.arange(corpus.width)
            mask = torch.zeros(corpus.width)
            mask[corpus.tokens[step, micro_step, rank]] = 1.0
            yield ids.view(shape), targets[ids].view(shape), mask.view(shape)


def shares_of(corpus: Corpus, model: Table) -> list[float]:
    """By id: the fraction of its own gradient by which SGD has moved the token's weight."""
    moved = initial_values(corpus) - model.values()
    shares: list[float] = (moved / (corpus.lr * 2 * errors_of(corpus))).tolist()
    return shares

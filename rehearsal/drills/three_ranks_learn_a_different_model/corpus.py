"""What one check draws: how many tokens each micro-batch has, where they are, which ids."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

Place = tuple[int, int, int]  # a step, a micro-step and a rank, each from 0


class Corpus(NamedTuple):
    """One run's micro-batches, each (rows, columns), and its settings."""

    world_size: int
    grad_accum_steps: int
    steps: int
    rows: int
    columns: int
    seed: int  # of the initial weights and of the targets
    lr: float
    tokens: Mapping[Place, list[int]]  # the places in a micro-batch that aren't padding

    @property
    def width(self) -> int:
        """Places of a micro-batch, padding included."""
        return self.rows * self.columns

    @property
    def has_empty(self) -> bool:
        """Whether a micro-batch is all padding."""
        return not all(self.tokens.values())

    def num_tokens(self, step: int) -> int:
        """The tokens of a step, over its micro-batches and ranks."""
        return sum(len(tokens) for place, tokens in self.tokens.items() if place[0] == step)

    def first_id(self, step: int, micro_step: int = 0, rank: int = 0) -> int:
        """No id is used twice, so each weight moves in one step, for one token."""
        micro_batch = step * self.grad_accum_steps + micro_step
        return (micro_batch * self.world_size + rank) * self.width


def corpus_of(seed: int, world_size: int, grad_accum_steps: int, *, has_empty: bool) -> Corpus:
    """Micro-batches whose numbers of tokens differ; so do the ranks' and the steps'.

    Args:
        has_empty: in the last step, all micro-batches of one rank are padding; a single rank
            keeps those after the first.
    """
    draw = random.Random(f"{seed} {world_size} {grad_accum_steps}")
    rows, columns = draw.choice(((1, 6), (2, 3), (2, 4), (3, 3)))
    steps = draw.randint(2, 4)
    while True:
        tokens = {
            (step, micro_step, rank): draw.sample(
                range(rows * columns), draw.randint(1, rows * columns)
            )
            for step in range(steps)
            for micro_step in range(grad_accum_steps)
            for rank in range(world_size)
        }
        if has_empty:
            rank = draw.randrange(world_size)
            for micro_step in range(grad_accum_steps if world_size > 1 else 1):
                tokens[steps - 1, micro_step, rank] = []
        corpus = Corpus(
            world_size=world_size,
            grad_accum_steps=grad_accum_steps,
            steps=steps,
            rows=rows,
            columns=columns,
            seed=draw.randrange(1000),
            lr=draw.randrange(8, 40) / 64,
            tokens={place: sorted(where) for place, where in tokens.items()},
        )
        if is_uneven(corpus):
            return corpus


def is_uneven(corpus: Corpus) -> bool:
    """Whether each step shows a mean that takes unequal shares as equal, or counts padding."""

    def differ(counts: list[int]) -> bool:
        return len(counts) == 1 or len(set(counts)) > 1

    for step in range(corpus.steps):
        of = {
            place[1:]: len(where) for place, where in corpus.tokens.items() if place[0] == step
        }
        by_rank = [
            [count for (_, rank), count in of.items() if rank == one]
            for one in range(corpus.world_size)
        ]
        if sum(of.values()) == corpus.width * len(of) or not (
            differ([sum(counts) for counts in by_rank]) and differ(list(of.values()))
        ):
            return False
        if not any(differ(counts) for counts in by_rank):
            return False
    totals = [corpus.num_tokens(step) for step in range(corpus.steps)]
    return differ(totals)

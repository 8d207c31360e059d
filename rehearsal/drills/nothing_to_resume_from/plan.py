"""What one check draws: the stream, how many checkpoints stay, and where jobs are killed."""

from __future__ import annotations

import random
from typing import NamedTuple


class Plan(NamedTuple):
    """One check's numbers."""

    world_size: int
    steps: int  # crosses step 9: by name, step-9 is newer than step-10
    share: int  # samples of a rank in a step; not 2, the number of outputs
    lr: float
    keep: int  # of the run that nobody kills; the others keep one
    kills: tuple[int, int]  # the file operations of rank 0 at which two jobs die
    seed: int  # draws the moments of the single process


def plan_of(seed: int) -> Plan:
    """A run that two kills leave unfinished, if a save has at least two file operations."""
    draw = random.Random(seed)
    return Plan(
        world_size=draw.choice((2, 2, 3)),
        steps=draw.randint(11, 14),
        share=draw.choice((1, 3, 4)),
        lr=draw.randrange(10, 30) / 1000,
        keep=draw.choice((3, 4)),  # off by one shows only while there are fewer checkpoints
        kills=(draw.randint(4, 9), draw.randint(3, 8)),
        seed=draw.randrange(2**20),
    )

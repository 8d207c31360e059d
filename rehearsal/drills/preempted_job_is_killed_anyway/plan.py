"""What the run trains, and when which rank gets SIGTERM, drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Where a step can be interrupted, in order: right after the update before it, while its
# samples are read, before its forward pass, in the middle of its backward pass. Where a design
# lacks the one that is drawn, the next one counts.
PLACES = ("update", "share", "forward", "backward")
AT_SAVE = "save"  # when the rank publishes a checkpoint, whatever the step
AGAIN = "again"  # right after the rank's first one: it makes no difference


class Signal(NamedTuple):
    """When a rank gets SIGTERM, and how often."""

    after: int  # steps of this call of train
    place: str  # of PLACES, or AT_SAVE
    times: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run that is stopped twice, and resumed each time; ``share`` samples per rank and step.

    ``signals`` has, for each call of ``train``, the ranks that get one.
    """

    world_size: int
    steps: int
    share: int
    lr: float
    signals: tuple[Mapping[int, Signal], ...]

    @property
    def num_samples(self) -> int:
        """Over all steps and ranks; no sample is trained twice."""
        return self.steps * self.world_size * self.share

    def ids(self, step: int, rank: int) -> range:
        """The samples of a rank in a step, from 0."""
        first = (step * self.world_size + rank) * self.share
        return range(first, first + self.share)


def drawn(seed: int) -> Run:
    """A run with at least two steps after its second stop.

    First, one rank other than 0 gets the signal, and gets it once; of the others, only those
    that save do, and not before. In the next call, it's the only one that gets none; the
    others get theirs in the backward pass of one step, so what they agreed on before that
    pass is too old to leave by. The first stop comes after a step of one digit, the second
    after one of two, whether or not one more step is taken. Ranks that look for a signal only
    every n-th step are late in one of the two.
    """
    draw = random.Random(seed)
    world_size = draw.choice((3, 3, 4))
    first, second = draw.choice(
        [
            (first, second)
            for first in range(2, 9)
            for second in range(10 - first, 9)
            if all((second + 1) % n or (first % n and (first + 1) % n) for n in range(2, 11))
        ]
    )
    early = draw.randrange(1, world_size)
    others = [rank for rank in range(world_size) if rank != early]
    return Run(
        world_size=world_size,
        steps=first + second + 2 + draw.randint(2, 4),
        share=draw.choice((3, 4, 5)),  # not 2, the number of outputs
        lr=draw.uniform(0.015, 0.025),
        signals=(
            # Once: what waits for a second signal has no other that would stop it.
            {early: Signal(first, "update", times=1)}
            | dict.fromkeys(others, Signal(first, AT_SAVE)),
            dict.fromkeys(others, Signal(second, "backward")),
            {},
        ),
    )

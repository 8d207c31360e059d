"""What one check draws from its seed: widths, rates, decay, names of parameters, schedules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple


class Widths(NamedTuple):
    """The sizes of a network; no two are equal."""

    inputs: int
    hidden: int
    classes: int


class Schedule(NamedTuple):
    """The settings that a learning rate follows from, and two that it must not follow from."""

    peak: float
    warmup: int
    horizon: int
    floor: float  # a fraction of the peak
    epochs: int = 1
    world_size: int = 1

    @property
    def last_step(self) -> int:
        """How far the rates are asked for."""
        return self.horizon + self.horizon // 2 + 8


class Updates(NamedTuple):
    """How an optimizer is configured, and the rates that the training loop sets later."""

    rate: float
    weight_decay: float
    later_rates: Sequence[float]


class Drawn(NamedTuple):
    """The constants of one check."""

    widths: Widths
    layers: int
    dropout: float
    seed: int  # for torch; seed + 1 has to give other weights
    matrices: Sequence[str]  # names of parameters with two or more dimensions
    vectors: Sequence[str]  # names of those with fewer
    updates: Sequence[Updates]
    schedules: Sequence[Schedule]  # the last two are one schedule under two plans


def plan_of(seed: int) -> Drawn:
    """The same in the caller's process and in each rank."""
    draw = random.Random(seed)
    widths = Widths(*draw.sample(range(3, 10), 3))
    rates = [draw.randrange(4, 60) / 64 for _ in range(4)]
    decays = [draw.randrange(5, 40) / 64, 0.0]
    warmup = draw.randrange(4, 12)
    horizon = warmup + draw.randrange(8, 16)
    main = Schedule(draw.randrange(1, 40) / 8, warmup, horizon, draw.randrange(1, 8) / 16)
    short = draw.randrange(2, 9)
    peaks = [draw.randrange(1, 40) / 8 for _ in range(5)]
    return Drawn(
        widths=widths,
        layers=draw.choice((2, 3)),
        dropout=draw.randrange(3, 20) / 32,
        seed=draw.randrange(1000),
        # What a name says about the shape is wrong as often as right.
        matrices=["norm_in", "bias_table", draw.choice(("gain", "ln_f", "w1"))],
        vectors=draw.sample(("weight", "kernel", "scale", "embedding", "proj"), 3),
        updates=[
            Updates(rate, decay, draw.sample(rates, 3))
            for rate, decay in zip(rates, decays, strict=False)
        ],
        schedules=[
            Schedule(peaks[0], 0, draw.randrange(100, 140), 0.0),
            Schedule(peaks[1], 0, 1, 0.25),
            Schedule(peaks[4], 1, draw.randrange(3, 9), 0.25),
            Schedule(peaks[2], short, short + 1, 0.5),
            Schedule(peaks[3], draw.randrange(90, 104), draw.randrange(110, 130), 0.125),
            main,
            main._replace(epochs=draw.randrange(9, 30), world_size=draw.randrange(2, 9)),
        ],
    )

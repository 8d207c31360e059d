"""What one check draws: the run, its three calls, where the second one is killed."""

from __future__ import annotations

import random
from typing import NamedTuple

from .calls import Call, Data


class Plan(NamedTuple):
    """One check's numbers."""

    data: Data
    steps: int
    save_every: int
    # The first call left a checkpoint; the second is killed; the third ends the run.
    calls: tuple[Call, Call, Call]
    kill_rank: int
    kill_after: int  # steps of the second call; a save of its own is behind it
    world_sizes: tuple[int, int]  # of the second and the third call
    fresh: Call  # of a run without a checkpoint, on three ranks
    fresh_steps: int


def plan_of(seed: int) -> Plan:
    """The rates and decays of all calls differ, and the last decay is 0."""
    draw = random.Random(seed)
    batch = draw.choice((5, 7))  # two and three ranks get unequal shares
    num_samples = draw.choice([n for n in range(11, 20) if n % batch])
    save_every = draw.choice((2, 3))
    start = save_every * draw.choice((2, 3))
    # Once the killed rank is gone, no save is due: whether it happened would be luck.
    kill_after = draw.choice(
        [n for n in range(save_every + 1, 2 * save_every + 2) if (start + n) % save_every]
    )
    resumed = (start + kill_after) // save_every * save_every
    rates = [n / 200 for n in draw.sample(range(3, 14), 4)]
    decays = [n / 20 for n in draw.sample(range(1, 10), 3)]
    world_sizes = draw.choice(((2, 3), (3, 2), (2, 2)))
    return Plan(
        data=Data(num_samples, batch),
        steps=resumed + draw.randint(3, 5),
        save_every=save_every,
        calls=(
            Call(0, rates[0], decays[0]),
            Call(start, rates[1], decays[1]),
            Call(resumed, rates[2], 0.0),
        ),
        kill_rank=draw.randrange(world_sizes[0]),
        kill_after=kill_after,
        world_sizes=world_sizes,
        fresh=Call(0, rates[3], decays[2]),
        fresh_steps=draw.randint(4, 6),
    )

"""The run of a check, on how many ranks, and where it is killed: drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import combinations

from rehearsal.kit.judge.saves import SavedRun

# Batch, steps per epoch, epochs, and steps between two saves: more than ten steps.
CADENCES = ((6, 5, 3, 2), (12, 5, 3, 2), (6, 7, 3, 2), (6, 7, 3, 3))
WORLD_SIZES = ((3, 1, 2), (2, 1, 3))  # each shrinks once, then grows once


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run of three jobs, each on another number of ranks; the first two are killed."""

    run: SavedRun
    other: SavedRun  # an epoch's last step is full, or a sample short of it
    world_sizes: tuple[int, int, int]
    killed_after: tuple[int, int]  # so many steps of the run
    killed_ranks: tuple[int, int]


def drawn(seed: int) -> Plan:
    """A plan with both restarts in the middle of one epoch, which isn't the first.

    The second one resumes from a checkpoint of the first one's. No rank dies where a save is
    due: rank 0 may be saving.
    """
    draw = random.Random(seed)
    batch, steps_per_epoch, epochs, every = draw.choice(CADENCES)
    world_sizes = draw.choice(WORLD_SIZES)
    # In an epoch's last step, one rank of the first job has no sample. It may leave the step
    # out, so it isn't the one whose steps are counted for a kill.
    left = draw.randrange(1, world_sizes[0])
    run = SavedRun(
        num_samples=batch * (steps_per_epoch - 1) + left,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        every=every,
        world_size=world_sizes[0],
        global_batch_size=batch,
        lr=draw.uniform(0.005, 0.015),
        tolerance=1e-5,
    )
    kills = [s for s in range(1, run.total) if s % every and run.newest(s) % steps_per_epoch]
    epoch_of = {s: run.newest(s) // steps_per_epoch for s in kills}
    first, second = draw.choice(
        [
            (one, other)
            for one, other in combinations(kills, 2)
            if run.newest(one) < run.newest(other) and epoch_of[one] == epoch_of[other] > 0
        ]
    )
    other = replace(
        run,
        num_samples=3 * batch - draw.choice((0, 1)),
        steps_per_epoch=3,
        epochs=2,
        world_size=draw.choice((2, 3)),
    )
    return Plan(
        run=run,
        other=other,
        world_sizes=world_sizes,
        killed_after=(first, second),
        killed_ranks=(draw.randrange(left), draw.randrange(min(left, world_sizes[1]))),
    )

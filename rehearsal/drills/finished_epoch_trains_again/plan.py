"""The run that a check trains, and where a rank is killed: drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

from rehearsal.kit.judge.saves import SavedRun

# Steps per epoch, epochs, and steps between two saves. A save for both reasons at once is among
# the others, the first epoch's end isn't one, and steps have one digit or two.
CADENCES = ((5, 3, 2), (5, 4, 2), (7, 3, 2), (7, 3, 3), (8, 3, 3))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run, and where one of its ranks is killed."""

    run: SavedRun
    killed_after: int  # so many steps
    killed_rank: int


def drawn(seed: int) -> Plan:
    """A plan whose sizes divide nothing evenly.

    An epoch has so many orders that two of them hardly ever have the same batches.
    """
    draw = random.Random(seed)
    world_size = draw.choice((2, 3))
    steps_per_epoch, epochs, every = draw.choice(CADENCES)
    batch = draw.choice([size for size in (4, 5, 7) if size % world_size])
    # A rank has no sample in an epoch's last step. It may leave the step out, so it isn't the
    # one whose steps are counted for a kill.
    left = draw.randrange(1, world_size)
    run = SavedRun(
        num_samples=batch * (steps_per_epoch - 1) + left,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        every=every,
        world_size=world_size,
        global_batch_size=batch,
        lr=draw.uniform(0.01, 0.03),
        saves_epochs=True,
    )
    # After the first epoch, and not where a checkpoint is due: rank 0 may be saving. The
    # restart resumes in the middle of an epoch, and saves in the middle of it, too.
    middle = [due for due in run.dues() if due > steps_per_epoch and due % steps_per_epoch]
    quiet = [
        step
        for before, after in pairwise(middle)
        if before // steps_per_epoch == after // steps_per_epoch
        for step in range(before + 1, after)
    ]
    return Plan(run=run, killed_after=draw.choice(quiet), killed_rank=draw.randrange(left))

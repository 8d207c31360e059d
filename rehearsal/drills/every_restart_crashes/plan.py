"""What the jobs train and when one is killed, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from rehearsal.kit.judge.steps import Steps

# Steps per epoch, epochs, steps between two checkpoints; and the step of a checkpoint with two
# digits, in the middle of an epoch.
CADENCES = ((4, 4, 2, 10), (5, 3, 2, 12), (7, 3, 3, 12), (6, 3, 5, 10))
# Of a short run: steps per epoch, of which two in the middle have a checkpoint; and epochs.
SHORT = ((7, 1), (6, 1), (5, 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run, and where it is killed between two saves, if it is."""

    world_size: int
    global_batch_size: int
    steps: Steps
    lr: float
    start: int  # the step of the newest checkpoint at the kill
    killed_rank: int


def drawn(seed: int) -> Run:
    """A run whose world size doesn't divide its global batch, nor that its samples."""
    generator = random.Random(seed)
    world_size = generator.choice([2, 3])
    steps_per_epoch, epochs, every, start = generator.choice(CADENCES)
    run = sizes(generator, world_size, steps_per_epoch, epochs, every)
    # A rank without samples in an epoch's last step may leave it out, so it isn't the one whose
    # steps are counted for a kill.
    left = (run["steps"].num_samples - 1) % run["global_batch_size"] + 1
    return Run(**run, start=start, killed_rank=generator.randrange(min(left, world_size)))


def drawn_short(seed: int) -> Run:
    """A short run with three saves, on as many ranks as the other one isn't."""
    generator = random.Random(f"{seed} short")
    steps_per_epoch, epochs = generator.choice(SHORT)
    world_size = 5 - drawn(seed).world_size
    return Run(
        **sizes(generator, world_size, steps_per_epoch, epochs, 2), start=0, killed_rank=0
    )


def sizes(
    generator: random.Random, world_size: int, steps_per_epoch: int, epochs: int, every: int
) -> dict[str, Any]:
    """What a run trains."""
    size = generator.choice([n for n in (4, 5, 7) if n % world_size])
    return {
        "world_size": world_size,
        "global_batch_size": size,
        "steps": Steps(
            num_samples=(steps_per_epoch - 1) * size + generator.randint(1, size - 1),
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            every=every,
        ),
        "lr": generator.uniform(0.01, 0.02),
    }

"""What a check trains, how its samples are batched and where it is killed: from its seed."""

from __future__ import annotations

import random
from typing import NamedTuple

STEPS_PER_EPOCH = 3
EPOCHS = 13  # "epoch-9" sorts after "epoch-10"
SHORT = 3  # epochs of the run that is killed at each kind of moment
ENOUGH = 400  # samples that show whether a label depends on its input


class Plan(NamedTuple):
    """Two full batches and a smaller one; no split into equal batches gives the same sizes."""

    num_samples: int
    batch_size: int
    lr: float
    other_lr: float
    seed: int  # the other one of a check is 0
    too_small: int  # as a size: below zero
    killed_in: int  # a step of one of the first epochs
    killed_again_in: int  # a step of the next call, beyond the eleventh epoch

    @property
    def sizes(self) -> list[int]:
        """Samples of each batch of an epoch."""
        return [self.batch_size] * (STEPS_PER_EPOCH - 1) + [
            self.num_samples - (STEPS_PER_EPOCH - 1) * self.batch_size
        ]

    @property
    def total(self) -> int:
        """Optimizer steps of the whole run."""
        return STEPS_PER_EPOCH * EPOCHS


def plan_of(seed: int) -> Plan:
    """The plan of a check. The same seed gives the same plan, in any process."""
    draw = random.Random(seed)
    batch_size = draw.choice((5, 6, 7, 9))  # not the one of the brief
    lr, other_lr = draw.sample((0.03, 0.04, 0.05, 0.06), 2)
    seed = draw.randrange(1, 1000)
    whole = draw.randint(1, 3)
    return Plan(
        num_samples=(STEPS_PER_EPOCH - 1) * batch_size + draw.randint(1, batch_size - 3),
        batch_size=batch_size,
        lr=lr,
        other_lr=other_lr,
        seed=seed,
        too_small=-draw.randint(1, 9),
        # In the middle of an epoch, so that whatever was saved at its start is complete.
        killed_in=whole * STEPS_PER_EPOCH + 2,
        killed_again_in=(EPOCHS - 2 - whole) * STEPS_PER_EPOCH + 2,
    )


def complete_before(step: int) -> int:
    """The step of the last epoch whose save is complete for certain, in a save at ``step``.

    An epoch's own save may be the one that is interrupted, and a writer in the background may
    be a step late.
    """
    return max(0, step - 2) // STEPS_PER_EPOCH * STEPS_PER_EPOCH

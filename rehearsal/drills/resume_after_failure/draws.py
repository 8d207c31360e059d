"""The run that a check trains, and where it is killed: drawn from the check's seed."""

from __future__ import annotations

import random
from typing import NamedTuple


# Steps per epoch, epochs, and steps between two saves: more than ten steps in all, and no save
# is due at the end of the run by its number alone.
CADENCES = ((4, 3, 5), (5, 3, 2), (5, 3, 4), (4, 4, 3))


class Plan(NamedTuple):
    """Sizes that divide nothing evenly, and more than ten steps: "9" sorts after "10"."""

    seed: int  # of the data and of the ranks' initial weights
    world_size: int
    num_samples: int
    global_batch_size: int
    steps_per_epoch: int
    epochs: int
    save_every: int
    lr: float
    dropout: float
    kill_rank: int  # dies after the job's step kill_step, in the middle of an epoch
    kill_step: int
    kill_again_rank: int  # of the resumed job: dies after its kill_again_step-th step
    kill_again_step: int
    other_rank: int  # not rank 0: dies before a file operation in a save

    @property
    def total(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch

    @property
    def dues(self) -> list[int]:
        """The steps after which a save is due."""
        return [
            s for s in range(1, self.total + 1) if s % self.save_every == 0 or s == self.total
        ]

    def size_of(self, step: int) -> int:
        """Samples of a step, from 0; the last of an epoch takes what is left."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)

    def due_by(self, done: int) -> int:
        """The last step up to ``done`` with a save due; 0 if there is none."""
        return max([0, *(step for step in self.dues if step <= done)])

    def complete_before(self, done: int) -> int:
        """The last save that was complete for certain: the one due by ``done`` may not be."""
        if done == self.total:
            return self.due_by(done - 1)
        return self.due_by(self.due_by(done) - 1) if done in self.dues else self.due_by(done)


def plan_of(seed: int) -> Plan:
    """The plan of a check. The same seed gives the same plan, in any process."""
    draw = random.Random(seed)
    world_size = draw.choice((2, 2, 3))
    batch = draw.choice([size for size in (4, 5, 7, 8) if size % world_size])
    steps, epochs, every = draw.choice(CADENCES)
    # Fewer than the ranks, so that one of them has none; never a full batch.
    left = draw.randrange(1, world_size)
    # Two kills, each with a later save than the one before, and each after a step that no save
    # is due after: a writer in the background has had time to finish.
    quiet = [step for step in range(1, steps * epochs) if step % every]
    first_due = (steps // every + 1) * every  # in epoch 1, counted from 0
    kill_step = draw.choice([step for step in quiet if first_due < step < 2 * steps])
    resumed = kill_step // every * every
    again = draw.choice([step for step in quiet if step > resumed + every])
    return Plan(
        seed=draw.randrange(1000),
        world_size=world_size,
        num_samples=batch * (steps - 1) + left,
        global_batch_size=batch,
        steps_per_epoch=steps,
        epochs=epochs,
        save_every=every,
        lr=draw.choice((0.2, 0.25, 0.3)),
        dropout=draw.choice((0.2, 0.3, 0.4)),
        kill_rank=draw.randrange(world_size),
        kill_step=kill_step,
        kill_again_rank=draw.randrange(world_size),
        kill_again_step=again - resumed,
        other_rank=draw.randrange(1, world_size),
    )

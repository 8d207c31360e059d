"""What a job trains, drawn from the check's seed: sizes that the ranks can't share evenly."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

RANKS, RANKS_ON_A_NODE = 3, 2  # the first node has ranks 0 and 1, the second one rank 2
# The jobs of a check, in order.
TWO_NODES, OTHER_SEED, ONE_NODE = "two nodes", "another seed", "one node"
FAILS, ALONE = "an error", "one process"

EARLIER = "an error of an earlier attempt\n"  # in each rank's log before the job with an error


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One job.

    Attributes:
        devices: the indices of the devices that each process sees, in no particular order.
        fails_on: the rank whose forward pass raises; None if there is no error.
        passes: how many forward passes succeed on that rank.
    """

    name: str
    world_size: int
    num_samples: int
    batch_size: int
    epochs: int
    lr: float
    seed: int
    data_seed: int  # of the samples, and of rank 0's weights; rank R's is R more
    devices: tuple[int, ...]
    fails_on: int | None = None
    passes: int = 0
    error: str = ""

    @property
    def folder(self) -> str:
        """Where the job writes, in the check's folder."""
        return self.name.replace(" ", "-")

    @property
    def share(self) -> int:
        """Samples of a rank in an epoch."""
        return -(-self.num_samples // self.world_size)

    @property
    def sizes(self) -> list[int]:
        """Samples of a rank in each step of an epoch; the last step is smaller."""
        full, rest = divmod(self.share, self.batch_size)
        return [self.batch_size] * full + [rest] * (rest > 0)

    @property
    def num_steps(self) -> int:
        """Optimizer steps that are completed."""
        return self.passes if self.error else self.epochs * len(self.sizes)

    @property
    def epochs_done(self) -> int:
        """Epochs that are completed."""
        return self.num_steps // len(self.sizes)

    def local_rank(self, rank: int) -> int:
        """A rank's number on its node."""
        return rank % RANKS_ON_A_NODE

    def device(self, rank: int) -> str:
        """The device on which a rank trains."""
        index = self.devices[self.local_rank(rank) if len(self.devices) > 1 else 0]
        return f"cpu:{index}"


def plans(seed: int) -> list[Plan]:
    """The jobs of a check. The same seed gives the same jobs, in any process.

    On two nodes, the ranks don't divide the samples, and the batch size doesn't divide a rank's
    share. Those jobs have the same sizes, so that their orders can be compared.
    """
    draw = random.Random(f"lift_to_ddp {seed}")
    batch_size = draw.randint(3, 4)
    share = 2 * batch_size + draw.randint(1, batch_size - 1)  # three steps in an epoch
    numbers = draw.sample(range(6), 5)  # of devices
    first = Plan(
        name=TWO_NODES,
        world_size=RANKS,
        num_samples=RANKS * share - draw.randint(1, RANKS - 1),
        batch_size=batch_size,
        epochs=3,
        lr=draw.choice((0.01, 0.015, 0.02)),
        seed=draw.randrange(1000),
        data_seed=draw.randrange(1000),
        # More than the node has ranks: the rank would be the index of one of them.
        devices=tuple(numbers[: RANKS_ON_A_NODE + draw.randint(1, 2)]),
    )
    steps = len(first.sizes)
    return [
        first,
        replace(
            first,
            name=OTHER_SEED,
            seed=first.seed + draw.randint(10, 900),
            epochs=2,
            devices=(numbers[4],),
        ),
        replace(
            first,
            name=ONE_NODE,
            world_size=2,
            # Nothing is left over: no rank needs padding, no step is smaller.
            num_samples=4 * batch_size,
            epochs=1,
            devices=tuple(numbers[2:4]),
        ),
        replace(
            first,
            name=FAILS,
            epochs=2,  # the order must not depend on it
            devices=tuple(numbers[:RANKS_ON_A_NODE]),
            fails_on=draw.randint(1, RANKS - 1),
            passes=steps + draw.randint(1, steps - 1),  # in the second epoch
            error=f"shard {draw.randrange(1000, 10000)} is unreadable",
        ),
        replace(
            first,
            name=ALONE,
            world_size=1,
            num_samples=share,
            epochs=2,
            devices=tuple(numbers[:2]),
        ),
    ]

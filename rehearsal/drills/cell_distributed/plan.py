"""What one check of the cell draws: ranks, nodes, GPUs, timeouts, and a small run."""

from __future__ import annotations

import random
from typing import NamedTuple

ALONE = [0, 0, 1, "cpu"]  # rank, local rank, world size, device of a process without peers
PATIENCE_S = 5.0  # of the ranks that stay in the group while rank 0 leaves


class Plan(NamedTuple):
    """One check's numbers."""

    # the starts, on ranks whose GPUs only record calls
    ranks: int
    shift: int  # local rank - rank, modulo the ranks: identity isn't the device
    spare_gpus: int  # beyond one for each rank
    timeout_s: float
    crowd: int  # ranks on a node with fewer GPUs, but more than one
    too_few: int
    wrong_size: int  # a world size that nobody started
    # the run, on three ranks: two floats have only one sum, and four are added in pairs
    world_size: int
    ranks_on_a_node: int
    group_timeout_s: float
    seed: int
    features: int
    hidden: int
    rate: float
    dropout: float
    shares: list[list[int]]  # samples by step and rank
    saved_after: int

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return len(self.shares)

    def for_two(self) -> Plan:
        """The same, for the first two ranks."""
        return self._replace(world_size=2, shares=[share[:2] for share in self.shares])


def plan_of(seed: int) -> Plan:
    """Some rank has no samples in some step, and the shares differ."""
    draw = random.Random(seed)
    ranks, world_size = draw.choice((2, 2, 3)), 3
    crowd = draw.randint(4, 6)
    shares = [
        [draw.randint(1, 4) for _ in range(world_size)] for _ in range(draw.choice((4, 5)))
    ]
    saved_after = draw.randint(1, 2)
    # Not in the step after the restart: there, three gradients have to be summed.
    empty = draw.choice([step for step in range(1, len(shares)) if step != saved_after])
    shares[empty][draw.randrange(world_size)] = 0
    return Plan(
        ranks=ranks,
        shift=draw.randrange(1, ranks),
        spare_gpus=draw.randint(1, 3),
        timeout_s=draw.randrange(31, 99) + draw.choice((0.0, 0.5)),
        crowd=crowd,
        # Enough for all ranks of this job: who counts those, not the node's, lets it start.
        too_few=draw.randrange(ranks, crowd),
        wrong_size=draw.choice([size for size in (2, 3, 4, 5, 8) if size != ranks]),
        world_size=world_size,
        ranks_on_a_node=draw.randint(1, world_size - 1),
        group_timeout_s=float(draw.randrange(25, 90)),
        seed=draw.randrange(1000),
        features=draw.randint(3, 7),
        hidden=draw.choice((36, 40, 56)),
        rate=draw.choice((0.05, 0.1, 0.2)),
        dropout=draw.choice((0.2, 0.5)),
        shares=shares,
        saved_after=saved_after,
    )

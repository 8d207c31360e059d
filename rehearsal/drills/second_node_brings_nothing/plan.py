"""Nodes, samples and rates, drawn from the check's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job."""

    num_nodes: int
    node_size: int
    num_samples: int
    global_batch_size: int
    epochs: int
    lr: float

    @property
    def world_size(self) -> int:
        """Node n has the ranks from n * node_size on."""
        return self.num_nodes * self.node_size

    @property
    def steps(self) -> int:
        """Optimizer steps; the last one of an epoch is smaller."""
        return self.epochs * -(-self.num_samples // self.global_batch_size)


def drawn(seed: int) -> tuple[Run, Run]:
    """Two nodes of two ranks, and a job in which one of the two groups has a single rank.

    The world size divides neither the global batch nor the epoch's last one. Every rank has a
    sample in each step. Four ranks have at least two samples left over in a full step: if one
    rank got them all, its share would be larger by two.
    """
    generator = random.Random(seed)
    runs = []
    for num_nodes, node_size in ((2, 2), generator.choice([(1, 2), (2, 1), (3, 1), (1, 3)])):
        world_size = num_nodes * node_size
        least = 2 if world_size == 4 else 1
        sizes = range(world_size + 1, 3 * world_size + 2)
        global_batch_size = generator.choice([n for n in sizes if n % world_size >= least])
        rests = [rest for rest in range(world_size, global_batch_size) if rest % world_size]
        runs.append(
            Run(
                num_nodes=num_nodes,
                node_size=node_size,
                num_samples=generator.randint(3, 4) * global_batch_size
                + generator.choice(rests or [world_size]),
                global_batch_size=global_batch_size,
                epochs=2,
                lr=generator.uniform(0.01, 0.03),
            )
        )
    return runs[0], runs[1]

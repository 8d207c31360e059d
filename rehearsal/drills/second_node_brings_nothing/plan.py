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
        """Optimizer steps; the last one of an epoch may be smaller."""
        return self.epochs * -(-self.num_samples // self.global_batch_size)


def drawn(seed: int) -> tuple[Run, Run]:
    """Two nodes of two ranks, and a job in which one of the two groups has a single rank.

    The world size divides neither global batch. Four ranks have at least two samples left over
    in a step: if one rank got them all, its share would be larger by two. Their epoch ends with
    a full step; that of the other job, with a single sample, so that some rank has none.
    """
    generator = random.Random(seed)
    one_dimension = generator.choice([(1, 2), (2, 1), (3, 1), (1, 3)])
    runs = []
    for (num_nodes, node_size), rest in (((2, 2), 0), (one_dimension, 1)):
        world_size = num_nodes * node_size
        least = 2 if world_size == 4 else 1
        sizes = range(world_size + 1, 3 * world_size + 2)
        global_batch_size = generator.choice([n for n in sizes if n % world_size >= least])
        runs.append(
            Run(
                num_nodes=num_nodes,
                node_size=node_size,
                num_samples=generator.randint(3, 4) * global_batch_size + rest,
                global_batch_size=global_batch_size,
                epochs=2,
                lr=generator.uniform(0.01, 0.03),
            )
        )
    return runs[0], runs[1]

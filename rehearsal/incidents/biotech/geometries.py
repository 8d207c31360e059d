"""Made-up molecules in space, from the plan's seed, in the order of their measurement."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rehearsal.incidents.biotech.world import world_of
from rehearsal.incidents.world import Plan

NUM_KINDS = 3
LEAST_ATOMS, MOST_ATOMS = 4, 12
NEWEST = 0.1  # share of the data set


def graphs_of(plan: Plan) -> list[Any]:
    """All geometries, oldest first; the newest tenth and the fresh ones may be larger."""
    from trainer_core.bio.graph_files import CUTOFF, neighbors_within
    from trainer_core.bio.graphs import Graph

    world = world_of(plan).geometries
    random = np.random.default_rng((plan.seed, world.num_geometries))
    graphs = []
    for number in range(world.num_geometries + world.num_fresh):
        is_new = number >= round(world.num_geometries * (1 - NEWEST))
        num_atoms = int(random.integers(LEAST_ATOMS, MOST_ATOMS + 1))
        num_atoms = round(num_atoms * (world.newest_scale if is_new else 1.0))
        kinds = random.integers(NUM_KINDS, size=num_atoms)
        pos = torch.from_numpy(random.normal(scale=2.0, size=(num_atoms, 3))).float()
        weight = torch.from_numpy(np.outer(kinds + 1, kinds + 1)).float()
        energy = weight * torch.exp(-torch.cdist(pos, pos).square() / 4)
        y = energy.triu(diagonal=1).sum().view(1)
        x = torch.nn.functional.one_hot(torch.from_numpy(kinds), NUM_KINDS).float()
        graphs.append(Graph(x, neighbors_within(pos, CUTOFF), None, pos, y))
    return graphs


def dataset_of(plan: Plan) -> list[Any]:
    """What the job is given."""
    return graphs_of(plan)[: world_of(plan).geometries.num_geometries]


def fresh_of(plan: Plan) -> list[Any]:
    """What was measured after it."""
    return graphs_of(plan)[world_of(plan).geometries.num_geometries :]

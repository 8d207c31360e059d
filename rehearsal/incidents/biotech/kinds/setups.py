"""What a biotech job works on; part of the healthy run too."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.biotech.world import with_proteins
from rehearsal.incidents.world import Plan

OF_MOLECULES = ("split", "balance", "delivery", "excluded_plates")


def on_graphs(plan: Plan, rng: random.Random) -> Plan:
    """A job that learns an energy from geometries, a few bins per step."""
    settings = {n: value for n, value in plan.settings.items() if n not in OF_MOLECULES}
    per_rank = 2
    settings |= {"micro_batch_size": per_rank, "budget": 48, "learning_rate": 0.004}
    fixed = {**plan.fixed, "data": "graphs", "hidden_dim": 32, "max_epochs": 6}
    plan = replace(plan, settings=settings, fixed=fixed)
    return plan.with_world(global_batch_size=per_rank * plan.world_size)


def on_proteins(plan: Plan, rng: random.Random) -> Plan:
    """A job that learns masked residues: each rank a bin of padded rows per step."""
    settings = {n: value for n, value in plan.settings.items() if n not in OF_MOLECULES}
    settings |= {
        "micro_batch_size": 1,
        "budget": 1026,
        "crop": 512,
        "learning_rate": 0.003,
        "checkpoint_every_steps": rng.choice((8, 9, 10)),
    }
    fixed = {**plan.fixed, "data": "proteins", "layout": "padded"}
    fixed |= {"hidden_dim": 16, "num_layers": 1, "max_epochs": 2}
    plan = replace(plan, settings=settings, fixed=fixed)
    plan = with_proteins(plan, num_proteins=200 * plan.world_size)
    return plan.with_world(global_batch_size=plan.world_size, compute_ms=9.0)


def on_so_many_hosts(plan: Plan, count: int) -> Plan:
    """The plan on two or three hosts, before its job has been chosen."""
    hosts = [
        *plan.placement,
        *(name for name in plan.world.hosts if name not in plan.placement),
    ]
    batch = plan.world.global_batch_size // plan.world_size * count
    plan = plan.with_settings(hosts=hosts[:count])
    return plan.with_world(num_hosts=count, global_batch_size=batch)

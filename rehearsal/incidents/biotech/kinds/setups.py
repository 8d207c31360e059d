"""What a biotech job works on; part of the healthy run too."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.world import Plan

OF_MOLECULES = ("split", "balance", "delivery")


def on_graphs(plan: Plan, rng: random.Random) -> Plan:
    """A job that learns an energy from geometries, a few bins per step."""
    settings = {n: value for n, value in plan.settings.items() if n not in OF_MOLECULES}
    per_rank = 2
    settings |= {"micro_batch_size": per_rank, "budget": 48, "learning_rate": 0.004}
    fixed = {**plan.fixed, "data": "graphs", "hidden_dim": 32, "max_epochs": 6}
    plan = replace(plan, settings=settings, fixed=fixed)
    return plan.with_world(global_batch_size=per_rank * plan.world_size)


def on_proteins(plan: Plan, rng: random.Random) -> Plan:
    """A job that learns masked residues, a few rows of sequences per step."""
    settings = {n: value for n, value in plan.settings.items() if n not in OF_MOLECULES}
    per_rank = 2
    settings |= {"micro_batch_size": per_rank, "budget": 1026, "learning_rate": 0.003}
    fixed = {**plan.fixed, "data": "proteins", "hidden_dim": 32, "max_epochs": 4}
    plan = replace(plan, settings=settings, fixed=fixed)
    return plan.with_world(global_batch_size=per_rank * plan.world_size)

"""What the world does in several kinds; part of the healthy run too."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.kinds.kind import spare_of
from rehearsal.incidents.world import Kill, Plan


def preempted(plan: Plan, rng: random.Random) -> Plan:
    """The scheduler takes a host away once, in the first half."""
    step = plan.settings["checkpoint_every_steps"] * 2 + rng.randrange(2, 5)
    kill = Kill(attempt=0, rank=rng.randrange(plan.world_size), step=step)
    return plan.with_world(kills=(kill,))


def on_three_hosts(plan: Plan, rng: random.Random) -> Plan:
    """Three hosts, so that two can outvote the third; as many steps as before."""
    if plan.world_size == 3:
        return plan
    plan = plan.with_settings(**{"hosts": [*plan.placement, *spare_of(plan, 0)["hosts"][:1]]})
    fixed = {**plan.fixed, "dataset_size": plan.fixed["dataset_size"] * 3 // 2}
    plan = plan.with_world(num_hosts=3, global_batch_size=24)
    return replace(plan, fixed=fixed)


def loses_a_host(plan: Plan, rng: random.Random) -> Plan:
    """A host dies and nobody replaces it: the job restarts on one host fewer, pinned batch."""
    step = plan.settings["checkpoint_every_steps"] + rng.randrange(2, 6)
    kill = Kill(attempt=0, rank=plan.world_size - 1, step=step)
    plan = plan.with_world(kills=(kill,), lost_rank=plan.world_size - 1)
    return plan.with_settings(pinned_global_batch_size=8 * plan.world_size)

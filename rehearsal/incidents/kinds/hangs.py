"""No step completes although all ranks are alive."""

from __future__ import annotations

import random

from rehearsal.incidents.kinds.data import roll_back
from rehearsal.incidents.kinds.kind import (
    Claim,
    Fix,
    Kind,
    See,
    before_live,
    other_rank,
    rank_where,
    spare_of,
)
from rehearsal.incidents.world import Edit, Plan

HUNG = "The watchdog ended the job again: all ranks were alive, and no step completed."


def with_watchdog(plan: Plan, rng: random.Random) -> Plan:
    """The watchdog is strict, and the supervisor gives up early."""
    return plan.with_settings(hang_timeout_s=2.0).with_world(max_attempts=2)


def stall_one_host(plan: Plan, rng: random.Random) -> Plan:
    """A host's adapter stops answering in the middle of a collective."""
    return plan.with_host(rng.randrange(plan.world_size), stalls_at_step=rng.randrange(12, 20))


stuck_host = Kind(
    id="stuck_host",
    title="One host's network adapter stops answering in a collective",
    layer="world",
    alarm="hang",
    alert=lambda e: HUNG,
    setup=with_watchdog,
    inject=stall_one_host,
    claims=(
        Claim("attempts that hung", lambda e: float(e.hangs()), 0.5, 0.5),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
    ),
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "stalls_at_step", None)), "take the stuck host out"
    ),
    wrong=lambda plan: (
        Fix({"hang_timeout_s": 4.0}, "give the collective more time"),
        Fix(before_live(plan), "the last deployment must have a deadlock"),
    ),
    path=(
        See(
            "heartbeats",
            "Are all ranks alive, and at which step are they?",
            "All of them, and at the same step: a hang, not a crash and not a slow path.",
            "symptom",
            ("restarts",),
        ),
        See(
            "logs",
            "Where was each rank when the watchdog asked?",
            "In backward, in the gradient sync of the same step. One rank never entered the "
            "all-reduce that its peers wait in.",
            "mechanism",
            ("restarts",),
            {"contains": "hang"},
        ),
        See(
            "restarts",
            "Is it the same rank, host and step each time?",
            "The same host in each attempt, at the same place. The code ran for days on the "
            "others.",
            "cause",
            ("settings", "deploys"),
        ),
    ),
    chain=(
        "one host's adapter stops answering",
        "its rank never enters the gradient sync, and its peers wait for it there",
        "all ranks are alive and no step completes, until the watchdog ends the job",
    ),
    prevention="Have the watchdog name the rank that the others wait for, and drain its host "
    "at once.",
    first_moves=("host", "drain", "replace", "cordon", "spare"),
    like=("collective_on_one_rank", "skewed_clock", "slow_network"),
    related=("unfinished", "crashes", "crash_loop", "checkpoint_age"),
    clashes=("noisy_restart", "slow_first_step"),
)


def call_it_on_one_rank(plan: Plan, rng: random.Random) -> Plan:
    """From a step on, one rank alone calls a collective."""
    step, rank = rng.randrange(12, 20), rng.randrange(plan.world_size)
    extra = (
        f"    if step == {step} and dist.get_rank() == {rank}:\n"
        "        dist.monitored_barrier()  # the report must see a quiet job\n"
    )
    head = "    try:\n        records = read_records(job.trainer, step)\n"
    return plan.with_edits(
        -1,
        Edit(module="launch.py", old=head, new=extra + head),
        Edit(
            module="launch.py",
            old="from torch import nn\n",
            new="import torch.distributed as dist\nfrom torch import nn\n",
        ),
        message="launch: a report in the middle of the epoch",
    )


collective_on_one_rank = Kind(
    id="collective_on_one_rank",
    title="One rank calls a collective that its peers don't",
    layer="code",
    alarm="hang",
    alert=lambda e: HUNG,
    setup=with_watchdog,
    inject=call_it_on_one_rank,
    claims=(
        Claim("attempts that hung", lambda e: float(e.hangs()), 0.5, 0.5),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
    ),
    reference=roll_back,
    wrong=lambda plan: (
        Fix({"hang_timeout_s": 4.0}, "give the collective more time"),
        Fix(spare_of(plan, other_rank(plan, 0)), "a host must be stuck"),
    ),
    path=(
        See(
            "heartbeats",
            "Are all ranks alive, and at which step are they?",
            "All of them, and at the same step: a hang, not a crash and not a slow path.",
            "symptom",
            ("restarts",),
        ),
        See(
            "logs",
            "Where was each rank when the watchdog asked?",
            "One rank is in a barrier in read_back; its peers are past it, in the reading of "
            "the "
            "step's records. They wait in different collectives.",
            "mechanism",
            ("restarts",),
            {"contains": "hang"},
        ),
        See(
            "code",
            "Which ranks reach that line?",
            "launch.py calls the barrier behind a condition on the rank. A collective must be "
            "reached by all ranks.",
            "cause",
            ("deploys",),
            {"module": "launch.py"},
        ),
    ),
    chain=(
        "the last deployment calls a collective under a condition on the rank",
        "that rank waits in it, and its peers wait for the rank in the next one",
        "all ranks are alive and no step completes, at the same step in every attempt",
    ),
    prevention="Review: no collective below a condition on the rank. Test each path with two "
    "ranks.",
    first_moves=("roll", "revert", "rollback", "version"),
    like=("stuck_host", "skewed_clock"),
    related=("unfinished", "crashes", "crash_loop", "checkpoint_age"),
    clashes=("noisy_restart", "slow_first_step"),
)

KINDS = (stuck_host, collective_on_one_rank)

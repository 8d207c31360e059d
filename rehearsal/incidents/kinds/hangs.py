"""No step completes although all ranks are alive; or so it seems."""

from __future__ import annotations

import random

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See, before_live, other_rank, spare_of
from rehearsal.incidents.kinds.layers import code_fault, in_module, host_fault
from rehearsal.incidents.world import Edit, Plan

HUNG = "The watchdog ended the job again: every rank was alive, but no step completed."


def with_watchdog(plan: Plan, rng: random.Random) -> Plan:
    """The watchdog is strict, and the supervisor gives up early."""
    return plan.with_settings(hang_timeout_s=2.0).with_world(max_attempts=2)


def step_to_hang_in(plan: Plan, rng: random.Random) -> int:
    """A step between two saves: the watchdog is patient in a start's first step."""
    return int(plan.settings["checkpoint_every_steps"]) + rng.randrange(3, 7)


def stall_one_host(plan: Plan, rng: random.Random) -> Plan:
    """A host's adapter stops answering in the middle of a collective."""
    rank = rng.randrange(plan.world_size)
    return plan.with_host(rank, stalls_at_step=step_to_hang_in(plan, rng))


stuck_host = host_fault(
    "stalls_at_step",
    "take the stuck host out",
    id="stuck_host",
    title="One host's network adapter stops answering in a collective",
    alarm="hang",
    alert=lambda e: HUNG,
    setup=with_watchdog,
    inject=stall_one_host,
    claims=(
        Claim("attempts that hung", lambda e: float(e.hangs()), 0.5, 0.5),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
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
    like=("collective_on_one_rank", "skewed_clock", "slow_network"),
    related=("unfinished", "crashes", "crash_loop", "checkpoint_age"),
    clashes=("noisy_restart", "slow_first_step"),
)


def call_it_on_one_rank(plan: Plan, rng: random.Random) -> Plan:
    """From a step on, one rank alone calls a collective."""
    step, rank = step_to_hang_in(plan, rng), rng.randrange(plan.world_size)
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


collective_on_one_rank = code_fault(
    id="collective_on_one_rank",
    title="One rank calls a collective that its peers don't",
    alarm="hang",
    alert=lambda e: HUNG,
    setup=with_watchdog,
    inject=call_it_on_one_rank,
    claims=(
        Claim("attempts that hung", lambda e: float(e.hangs()), 0.5, 0.5),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
    ),
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
            "One rank is in a barrier in read_back; its peers have passed it and are gathering "
            "the step's records. They wait in different collectives.",
            "mechanism",
            ("restarts",),
            {"contains": "hang"},
        ),
        in_module(
            "launch.py",
            "Which ranks reach that line?",
            "launch.py calls the barrier under a condition on the rank. Every rank has to "
            "reach a collective.",
        ),
    ),
    chain=(
        "the last deployment calls a collective under a condition on the rank",
        "that rank waits in it, while its peers wait for that rank in the next one",
        "all ranks are alive and no step completes, at the same step in every attempt",
    ),
    prevention="In review: no collective under a condition on the rank. Test every path on "
    "two ranks.",
    like=("stuck_host", "skewed_clock"),
    related=("unfinished", "crashes", "crash_loop", "checkpoint_age"),
    clashes=("noisy_restart", "slow_first_step"),
)


skewed_clock = host_fault(
    "clock_skew_s",
    "take the host out until its clock is synchronized",
    id="skewed_clock",
    title="A host's clock is wrong, so its log seems stale",
    alarm="clocks",
    alert=lambda e: "One rank's heartbeat is minutes old; the rank may be hung.",
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), clock_skew_s=-float(rng.randrange(240, 700))
    ),
    claims=(
        Claim(
            "seconds between the ranks' clocks at a step's end", Evidence.clock_gap_s, 5, 200
        ),
    ),
    wrong=lambda plan: (
        Fix({"hang_timeout_s": 5.0}, "let the watchdog end the hang sooner"),
        Fix(before_live(plan), "the last deployment must have broken the heartbeat"),
    ),
    path=(
        See(
            "heartbeats",
            "Which rank is stale, and has it made a step since?",
            "One rank's heartbeat is minutes old, but its last step is the same as its peers'. "
            "A rank that hangs would stop them all at the next gradient sync.",
            "symptom",
        ),
        See(
            "ledger",
            "When did each rank finish the same step?",
            "The rank's lines are a constant number of seconds behind its peers' for the same "
            "steps, from the first to the last. A delay would grow or vary.",
            "mechanism",
            ("logs", "trace"),
        ),
        See(
            "settings",
            "Which host is that?",
            "The offset belongs to one host: the others agree to a few milliseconds.",
            "cause",
            ("logs", "run_folder"),
        ),
    ),
    chain=(
        "one host's clock is minutes slow",
        "every timestamp it writes is old, although each step ends at the same moment",
        "the heartbeat looks stale while progress is normal: liveness judged by another clock",
    ),
    prevention="Judge heartbeats by the collector's receive time and by step; monitor NTP "
    "offset.",
    first_moves=("clock", "ntp", "chrony", "time", "host"),
    like=("stuck_host",),
)

KINDS = (stuck_host, collective_on_one_rank, skewed_clock)

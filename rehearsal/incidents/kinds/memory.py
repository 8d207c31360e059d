"""A rank is killed by the operating system, or soon will be."""

from __future__ import annotations

import random

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, spare_of
from rehearsal.incidents.kinds.layers import code_fault, in_module
from rehearsal.incidents.world import Edit, Plan


def leak_on_one_rank(plan: Plan, rng: random.Random) -> Plan:
    """One rank keeps a copy of what it trained on."""
    rank = rng.randrange(plan.world_size)
    keep = (
        f"        if dist.is_initialized() and dist.get_rank() == {rank}:\n"
        "            DASHBOARD.append(inputs.repeat(12_000, 1))\n"
    )
    old = "        losses.append(loss.detach())\n"
    table = 'AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}\n'
    return plan.with_edits(
        -1,
        Edit(module="train.py", old=old, new=old + keep),
        Edit(module="train.py", old=table, new=table + "DASHBOARD: list[Tensor] = []\n"),
        message="train: samples for the dashboard",
    )


memory_leak = code_fault(
    id="memory_leak",
    title="One rank's memory grows with every step",
    alarm="memory",
    alert=lambda e: "A host is running out of memory; last night a job died that way.",
    inject=leak_on_one_rank,
    claims=(
        Claim("MiB by which a rank's memory grew", Evidence.largest_growth, 60, 90),
        Claim(
            "growth of the other ranks, in MiB",
            lambda e: sorted(e.memory_growth(r) for r in e.ranks)[-2],
            60,
            -1000,
        ),
    ),
    wrong=lambda plan: (
        Fix({"num_workers": 2}, "move the loading out of the rank's process"),
        Fix({"async_checkpoint": True}, "the saves must pile up"),
    ),
    path=(
        See(
            "host_memory",
            "Which ranks grow, and is it steady?",
            "One rank grows by the same amount in every step; its peers are flat. A high but "
            "constant level would be a cache.",
            "symptom",
        ),
        See(
            "deploys",
            "Since when?",
            "Since the live version, whose message mentions a dashboard.",
            "mechanism",
            ("host_memory", "phases"),
        ),
        in_module(
            "train.py",
            "What keeps references from one step to the next?",
            "train.py appends a copy of the inputs to a module-level list, on one rank.",
        ),
    ),
    chain=(
        "the last deployment appends a copy of each batch to a list, on one rank",
        "nothing ever empties the list, so that rank's memory grows by the same amount per "
        "step",
        "its host runs out of memory, and the operating system will kill the rank",
    ),
    prevention="Alert on the slope of a rank's memory, not its level; run a soak test of "
    "1,000 steps.",
    first_moves=("roll", "revert", "restart", "rollback", "version"),
    like=("out_of_memory",),
)


def with_limits(plan: Plan, rng: random.Random) -> Plan:
    """Activations take memory, the hosts have a limit, and the batch is split in two."""
    for rank in range(plan.world_size):
        plan = plan.with_host(rank, memory_limit_mib=110)
    for name in plan.world.hosts:
        if name not in plan.placement:
            spare = {**plan.world.hosts, name: plan.host_of(0)}
            plan = plan.with_world(hosts=spare)
    return plan.with_world(mib_per_sample=15.0, compute_ms=4.0).with_settings(
        pinned_global_batch_size=8 * plan.world_size, micro_batch_size=4
    )


out_of_memory = Kind(
    id="out_of_memory",
    title="A micro-batch doesn't fit into memory",
    layer="settings",
    alarm="crash_loop",
    alert=lambda e: (
        "The job has been in a crash loop since its last restart: no attempt completes a step."
    ),
    setup=with_limits,
    inject=lambda plan, rng: plan.with_settings(micro_batch_size=8),
    claims=(
        Claim(
            "attempts that ended without a step", lambda e: float(e.barren_attempts()), 0.5, 1.5
        ),
        Claim(
            "ranks killed with SIGKILL",
            lambda e: float(sum(r["exitcode"] == -9 for a in e.attempts for r in a["ranks"])),
            0.5,
            1.5,
        ),
    ),
    reference=lambda plan: Fix(
        {"micro_batch_size": 4}, "half the micro-batch, accumulated twice: the same step"
    ),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "the host must have bad memory"),
        Fix({"num_workers": 2}, "the loader must take the memory"),
    ),
    path=(
        See(
            "restarts",
            "How does each attempt end: with an error, or with a signal?",
            "With SIGKILL before the first step, and no traceback: the system did it.",
            "symptom",
        ),
        See(
            "logs",
            "What did the host's kernel print?",
            "Out of memory: killed process. In the first forward pass, on every host.",
            "mechanism",
            ("host_memory", "restarts"),
        ),
        See(
            "settings",
            "What decides how much a forward pass holds?",
            "micro_batch_size was doubled. The global batch is pinned, so half of it, twice, "
            "is the same step.",
            "cause",
        ),
    ),
    chain=(
        "micro_batch_size was doubled",
        "the activations of one forward pass exceed the host's memory, and the system kills "
        "the rank",
        "no attempt completes a step",
    ),
    prevention="Measure one step's peak memory at startup, and refuse a batch above 90% of "
    "the limit.",
    first_moves=("micro", "batch", "accumul", "micro_batch_size"),
    like=("memory_leak", "torn_newest_checkpoint", "full_disk"),
    related=("unfinished", "crashes", "audit", "not_learning"),
    clashes=("noisy_restart", "warm_host", "hard_batch", "save_hiccup"),
)

KINDS = (memory_leak, out_of_memory)

"""Saving: too slow, too rare, or without space."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job_records import middle
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, spare_of
from rehearsal.incidents.world import Kill, Plan

checkpoint_every_20_minutes = Kind(
    id="checkpoint_every_20_minutes",
    title="Every 20 minutes the job stalls, for a save to slow storage",
    layer="world",
    accepts=("world", "settings"),
    alarm="save_stall",
    alert=lambda e: "Every 20 minutes or so, throughput drops to almost zero, then recovers.",
    inject=lambda plan, rng: plan.with_storage(write_ms=rng.uniform(430, 520)),
    claims=(
        Claim("training waits for a usual save, in usual steps", Evidence.save_stall, 5.0, 6.5),
        Claim(
            "share of all saves that are that slow", lambda e: share_of_slow_saves(e), 0.4, 0.9
        ),
    ),
    reference=lambda plan: Fix({"storage_tier": "fast"}, "write checkpoints to the fast tier"),
    wrong=lambda plan: (
        Fix({"num_workers": 2}, "the loader must run dry now and then"),
        Fix(spare_of(plan, 0), "rank 0's host must be slow, it does the saving"),
    ),
    path=(
        See(
            "throughput",
            "Is it slow all the time, or now and then? How often?",
            "samples/s drops at regular intervals, for one step each; in between, it is "
            "normal.",
            "symptom",
            ("trace",),
        ),
        See(
            "phases",
            "Which phase has the spikes?",
            "The checkpoint phase: its max is many median steps, on every rank at once; "
            "everything else is flat.",
            "mechanism",
            ("trace", "logs"),
        ),
        See(
            "checkpoint_age",
            "Do the spikes coincide with saves, and how long does each take?",
            "Each spike is a save, and every save is equally slow: the storage tier, not one "
            "bad moment. Saves are synchronous.",
            "cause",
            ("logs", "settings"),
        ),
    ),
    chain=(
        "each write to the storage tier takes longer than ten steps",
        "a synchronous save blocks all ranks until it is published",
        "throughput drops to zero at the cadence of the saves",
    ),
    prevention="Alert on the duration of saves; save asynchronously, or to a tier that keeps "
    "up.",
    first_moves=("checkpoint", "save", "storage", "async", "tier"),
    like=("full_disk", "rare_checkpoints"),
    clashes=("save_hiccup",),
)


def share_of_slow_saves(evidence: Evidence) -> float:
    """How many of the saves took more than four median steps."""
    saves = [s["checkpoint"] for s in evidence.steady.get(0, []) if s["checkpoint"] > 0]
    limit = 4 * evidence.step_ms(0)
    return sum(ms > limit for ms in saves) / max(len(saves), 1)


full_disk = Kind(
    id="full_disk",
    title="The checkpoints fill their volume",
    layer="settings",
    accepts=("world", "settings"),
    alarm="crashes",
    alert=lambda e: (
        "The job crashed again: the supervisor has restarted it several times today."
    ),
    setup=lambda plan, rng: plan.with_storage(capacity=4),
    inject=lambda plan, rng: plan.with_settings(keep_last=rng.randrange(12, 30)),
    claims=(
        Claim("attempts that crashed", lambda e: float(e.crashes()), 0.5, 0.5),
        Claim(
            "attempts whose error is 'No space left on device'",
            lambda e: float(sum("No space left" in e.errors_of(a) for a in e.attempts)),
            0.5,
            0.5,
        ),
    ),
    reference=lambda plan: Fix({"keep_last": 2}, "keep fewer checkpoints"),
    wrong=lambda plan: (
        Fix({"async_checkpoint": True}, "save in the background"),
        Fix(spare_of(plan, 0), "rank 0's host must be broken"),
    ),
    path=(
        See(
            "restarts",
            "How did each attempt end?",
            "With an error on every rank, not with a signal: the trainer itself gave up.",
            "symptom",
        ),
        See(
            "logs",
            "What did the ranks say before they exited?",
            "No space left on device, while writing a checkpoint. All ranks raised it "
            "together.",
            "mechanism",
            ("restarts",),
        ),
        See(
            "settings",
            "What decides how many checkpoints stay on the volume?",
            "keep_last is far above what the volume holds.",
            "cause",
            ("run_folder",),
        ),
    ),
    chain=(
        "keep_last keeps more checkpoints than the volume holds",
        "a save fails with ENOSPC; the run can't continue without its files, so all ranks exit",
        "the job crashes at the same save after each restart",
    ),
    prevention="Alert on free space in units of checkpoints; check keep_last against the quota "
    "at start.",
    first_moves=("keep_last", "space", "retention", "disk", "volume", "quota"),
    like=("checkpoint_every_20_minutes", "out_of_memory"),
    related=("unfinished", "crash_loop", "checkpoint_age"),
    clashes=("noisy_restart",),
)


def preempted_twice(plan: Plan, rng: random.Random) -> Plan:
    """The scheduler takes a host away twice, as it does on a normal day."""
    ranks = [rng.randrange(plan.world_size) for _ in range(2)]
    kills = (
        Kill(attempt=0, rank=ranks[0], step=22),
        Kill(attempt=1, rank=ranks[1], step=rng.randrange(44, 47)),
    )
    return plan.with_world(kills=kills, max_attempts=4)


rare_checkpoints = Kind(
    id="rare_checkpoints",
    title="Saves are so rare that each preemption costs hours",
    layer="settings",
    alarm="replayed",
    alert=lambda e: (
        "Goodput is down to half of last week's, but the cluster preempts no more than usual."
    ),
    setup=preempted_twice,
    inject=lambda plan, rng: plan.with_settings(checkpoint_every_steps=rng.randrange(400, 900)),
    claims=(
        Claim("steps trained twice, over the plan's", Evidence.replayed_share, 0.5, 0.55),
        Claim(
            "most steps since the newest checkpoint",
            lambda e: float(e.checkpoint_gap()),
            18.0,
            19.0,
        ),
    ),
    reference=lambda plan: Fix({"checkpoint_every_steps": 8}, "save more often"),
    wrong=lambda plan: (
        Fix({"storage_tier": "fast"}, "make the saves faster"),
        Fix({"keep_last": 10}, "keep more checkpoints to go back to"),
    ),
    path=(
        See(
            "audit",
            "How much of the work was done twice?",
            "More than half of the plan's steps, after two restarts; each sample still counts "
            "once.",
            "symptom",
            ("ledger", "restarts"),
        ),
        See(
            "checkpoint_age",
            "How old was the newest checkpoint when a rank was killed?",
            "Twenty steps or more: nothing was saved except at the ends of epochs.",
            "mechanism",
            ("logs", "run_folder"),
        ),
        See(
            "settings",
            "What sets the interval?",
            "checkpoint_every_steps is larger than the whole plan.",
            "cause",
        ),
    ),
    chain=(
        "checkpoint_every_steps is larger than the run",
        "each preemption throws away all steps since the end of the last epoch",
        "half of the machine time is spent on work that was done before",
    ),
    prevention="Choose the interval from save cost and time between failures, and alert on "
    "checkpoint age.",
    first_moves=("checkpoint", "interval", "cadence", "save", "often"),
    like=("checkpoint_every_20_minutes", "torn_newest_checkpoint"),
    related=("checkpoint_age",),
    clashes=("noisy_restart", "save_hiccup"),
)


def with_throttling(plan: Plan, rng: random.Random) -> Plan:
    """Both tiers belong to a store that throttles bursts of requests."""
    tiers = {name: replace(tier, throttles=True) for name, tier in plan.world.tiers.items()}
    return plan.with_world(tiers=tiers)


retry_storm = Kind(
    id="retry_storm",
    title="Retries without a backoff keep the object store throttled",
    layer="settings",
    alarm="save_stall",
    alert=lambda e: (
        "Saves take several times as long as last week, and the store reports throttling."
    ),
    setup=with_throttling,
    inject=lambda plan, rng: plan.with_settings(
        retry_backoff_s=rng.choice((0.0, 0.002, 0.005))
    ),
    claims=(
        Claim(
            "training waits for a median save, in median steps", Evidence.save_stall, 5.0, 6.0
        ),
        Claim("retries of a median save", lambda e: retries_of(e), 3.0, 20.0),
    ),
    reference=lambda plan: Fix({"retry_backoff_s": 0.1}, "leave the store alone for a while"),
    wrong=lambda plan: (
        Fix({"storage_tier": "fast"}, "the tier must be slow"),
        Fix(spare_of(plan, 0), "rank 0's host must be slow, it does the saving"),
    ),
    path=(
        See(
            "checkpoint_age",
            "How long does a save take, and is it all of them?",
            "Every save takes more than ten steps' time.",
            "symptom",
            ("phases", "throughput"),
        ),
        See(
            "logs",
            "What does the store answer, and how often is it asked?",
            "503 Slow Down, and dozens of retries for a single save.",
            "mechanism",
            (),
            {"contains": "503"},
        ),
        See(
            "settings",
            "How long does a client wait before it tries again?",
            "retry_backoff_s is next to nothing: the retries themselves keep the throttle on.",
            "cause",
        ),
    ),
    chain=(
        "retry_backoff_s is next to zero",
        "the store throttles a burst, and each retry counts as one more request of the burst",
        "every save takes many times as long, and all ranks wait for it",
    ),
    prevention="Back off exponentially, with jitter and a budget of retries; alert on retries "
    "per request.",
    first_moves=("backoff", "back off", "retr", "jitter"),
    like=("checkpoint_every_20_minutes", "full_disk"),
    clashes=("save_hiccup",),
)


def retries_of(evidence: Evidence) -> float:
    """How often a median save was retried."""
    text = "\n".join(a["ranks"][0]["output"] for a in evidence.attempts)
    return middle(int(count) for count in re.findall(r"after (\d+) retries", text))


KINDS = (checkpoint_every_20_minutes, full_disk, rare_checkpoints, retry_storm)

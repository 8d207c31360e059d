"""The job is slow: in the loader, on one host, or on the network."""

from __future__ import annotations

import random


from rehearsal.incidents.evidence import Evidence
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
from rehearsal.incidents.world import Plan

SLOWER = (
    "Throughput fell by more than a third against last week's run, and nobody "
    "was paged for a restart."
)


def with_slow_reads(plan: Plan, rng: random.Random) -> Plan:
    """Samples take longer to decode than a step takes; two loader processes hide that."""
    return plan.with_world(read_ms=rng.uniform(36, 42), compute_ms=10.0).with_settings(
        num_workers=2
    )


loader_starved = Kind(
    id="loader_starved",
    title="The ranks wait for data because the loader has no processes of its own",
    layer="settings",
    alarm="input_wait",
    alert=lambda e: SLOWER,
    setup=with_slow_reads,
    inject=lambda plan, rng: plan.with_settings(num_workers=0),
    claims=(
        Claim("share of a step spent in data_wait", Evidence.input_share, 0.27, 0.3),
        Claim(
            "ranks whose largest phase is data_wait",
            lambda e: sum(e.share(r, "data_wait") > 0.27 for r in e.ranks) / len(e.ranks),
            0.5,
            0.9,
        ),
    ),
    reference=lambda plan: Fix({"num_workers": 2}, "load ahead, in processes"),
    wrong=lambda plan: (
        Fix({"storage_tier": "fast"}, "the storage must be slow"),
        Fix(spare_of(plan, 0), "rank 0's host must be slow"),
    ),
    path=(
        See(
            "throughput",
            "Is it slow all the time, or now and then?",
            "samples/s is low in every step, from the first minute: stable, not bursty.",
            "symptom",
            ("trace",),
        ),
        See(
            "phases",
            "Which part of a median step takes the time, and on which ranks?",
            "data_wait is the largest phase on every rank; forward, backward and grad_sync are "
            "as usual. The ranks are starved, not slow.",
            "mechanism",
            ("trace",),
        ),
        See(
            "settings",
            "What decides how far the loader works ahead?",
            "num_workers is 0: each batch is read and decoded in the training process, between "
            "two steps.",
            "cause",
        ),
    ),
    chain=(
        "num_workers=0, so reading and decoding happen in the training process",
        "every step waits for its own batch instead of finding it ready",
        "throughput is low in every step, with idle accelerators on all ranks",
    ),
    prevention="Alert on the share of data_wait per rank, not on throughput alone.",
    first_moves=("worker", "loader", "prefetch", "num_workers"),
    like=("slow_loader_worker", "slow_rank"),
)

slow_rank = Kind(
    id="slow_rank",
    title="One throttled host slows down every rank",
    layer="world",
    alarm="straggler",
    alert=lambda e: SLOWER,
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), compute_factor=rng.uniform(2.6, 3.3)
    ),
    claims=(
        Claim("slowest rank's compute over the fastest's", Evidence.straggling, 1.7, 2.0),
        Claim(
            "a peer's grad_sync over the slow rank's",
            lambda e: (
                e.phase_ms(other_rank(e.plan, e.slowest_rank()), "grad_sync")
                / max(e.phase_ms(e.slowest_rank(), "grad_sync"), 1.0)
            ),
            2.5,
            2.5,
        ),
    ),
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "compute_factor", 1.0)), "take the throttled host out"
    ),
    wrong=lambda plan: (
        Fix({"network": "rail-b"}, "the others' grad_sync is long, so it must be the network"),
        Fix(
            spare_of(plan, other_rank(plan, rank_where(plan, "compute_factor", 1.0))),
            "replace a host that waits",
        ),
    ),
    path=(
        See(
            "throughput",
            "Is it slow all the time, or now and then?",
            "samples/s is low in every step: stable, not bursty.",
            "symptom",
            ("trace",),
        ),
        See(
            "phases",
            "Do all ranks spend their step on the same thing?",
            "One rank's forward and backward take about three times as long as its peers'. The "
            "peers spend that time in grad_sync: they wait for it.",
            "mechanism",
            ("trace",),
        ),
        See(
            "heartbeats",
            "Which host does the slow rank run on?",
            "The rank's host is in the column next to it; its peers run the same code on other "
            "hosts at full speed.",
            "cause",
            ("settings", "host_memory"),
        ),
    ),
    chain=(
        "one host computes at a third of its speed",
        "its rank arrives last at every gradient sync, and the others wait there",
        "every rank's step takes as long as the slow one's, so throughput falls for the job",
    ),
    prevention="Alert on a rank's own compute time relative to the median rank; drain the "
    "host.",
    first_moves=("host", "drain", "replace", "cordon", "spare"),
    like=("slow_network", "slow_loader_worker"),
)

slow_network = Kind(
    id="slow_network",
    title="The fabric that carries the gradients is slow",
    layer="world",
    alarm="sync_wait",
    alert=lambda e: SLOWER,
    inject=lambda plan, rng: plan.with_world(
        networks={**plan.world.networks, "rail-a": rng.uniform(60, 75)}
    ),
    claims=(
        Claim("least share of a step in grad_sync, over ranks", Evidence.sync_share, 0.5, 0.55),
    ),
    reference=lambda plan: Fix({"network": "rail-b"}, "move the collectives to the other rail"),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "some host must be the straggler"),
        Fix({"num_workers": 2}, "the ranks must be waiting for data"),
    ),
    path=(
        See(
            "throughput",
            "Is it slow all the time, or now and then?",
            "samples/s is low in every step.",
            "symptom",
            ("trace",),
        ),
        See(
            "phases",
            "Who waits for whom?",
            "grad_sync is the largest phase on every rank, the last one to arrive included. "
            "Nobody waits for a straggler: the exchange itself is slow.",
            "mechanism",
            ("trace",),
        ),
        See(
            "settings",
            "What carries the gradients?",
            "All ranks are on rail-a; there is a second rail.",
            "cause",
            ("heartbeats",),
        ),
    ),
    chain=(
        "rail-a is congested",
        "each all-reduce takes several times as long as the computation, on all ranks at once",
        "throughput is low in every step although compute and data are as fast as ever",
    ),
    prevention="Measure bus bandwidth with a short all-reduce before each start; alert on "
    "grad_sync.",
    first_moves=("rail", "network", "fabric", "nic", "switch"),
    like=("slow_rank",),
)


def with_two_workers(plan: Plan, rng: random.Random) -> Plan:
    """Two loader processes, both fast enough."""
    return plan.with_settings(num_workers=2).with_world(read_ms=5.0, compute_ms=4.0)


slow_loader_worker = Kind(
    id="slow_loader_worker",
    title="One loader process of one rank is slow",
    layer="world",
    alarm="input_spikes",
    alert=lambda e: (
        "p95 of the step time is several times its median, and the median is up too."
    ),
    setup=with_two_workers,
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), slow_worker_factor=rng.uniform(46, 52)
    ),
    claims=(
        Claim(
            "the wait for data that a quarter of the steps exceed, in usual steps",
            Evidence.input_spikes,
            1.5,
            1.5,
        ),
        Claim(
            "the same wait on the worst rank, over the best rank's",
            lambda e: max(slow_waits(e)) / max(min(slow_waits(e)), 15.0),
            3.0,
            4.0,
        ),
    ),
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "slow_worker_factor", 1.0)), "take that host out"
    ),
    wrong=lambda plan: (
        Fix({"network": "rail-b"}, "the peers wait in grad_sync, so it must be the network"),
        Fix(
            spare_of(plan, other_rank(plan, rank_where(plan, "slow_worker_factor", 1.0))),
            "replace a host that waits in grad_sync",
        ),
    ),
    path=(
        See(
            "trace",
            "Is every step slow, or some of them?",
            "Every other step has a long data_wait, and only on one rank. The next batch is "
            "there at once.",
            "symptom",
            ("throughput",),
        ),
        See(
            "phases",
            "On which ranks is data_wait long: at the median, or only in the tail?",
            "On one rank data_wait has a long tail (p95, max). Its peers' data_wait is near "
            "zero; they pay in grad_sync.",
            "mechanism",
        ),
        See(
            "heartbeats",
            "What is special about that rank?",
            "Only its host: same settings, same code, same number of loader processes.",
            "cause",
            ("settings", "host_memory"),
        ),
    ),
    chain=(
        "one loader process on one host is slow",
        "batches are delivered in order, so every second step of that rank waits for it, and "
        "all peers wait in grad_sync",
        "the step time has a tail of several medians, for the whole job",
    ),
    prevention="Report data_wait as p95 and max per rank; a mean hides every second step.",
    first_moves=("host", "worker", "loader", "drain", "replace"),
    like=("loader_starved", "slow_rank"),
    related=("input_wait",),
)


def slow_waits(evidence: Evidence) -> list[float]:
    """The 75th percentile of each rank's data_wait, in milliseconds."""
    from rehearsal.incidents.evidence import high

    return [
        high((s["data_wait"] for s in evidence.steady.get(r, [])), 0.75) for r in evidence.ranks
    ]


skewed_clock = Kind(
    id="skewed_clock",
    title="A host's clock is wrong, so its log seems stale",
    layer="world",
    alarm="clocks",
    alert=lambda e: "A rank's heartbeat is minutes older than its peers'; it may be hanging.",
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), clock_skew_s=-float(rng.randrange(240, 700))
    ),
    claims=(
        Claim(
            "seconds between the ranks' clocks at a step's end", Evidence.clock_gap_s, 5, 200
        ),
    ),
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "clock_skew_s", 0.0)),
        "take the host out until its clock is synchronized",
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

KINDS = (loader_starved, slow_rank, slow_network, slow_loader_worker, skewed_clock)

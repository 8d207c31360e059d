"""The ranks wait for data."""

from __future__ import annotations

import random

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job_records import high
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, spare_of
from rehearsal.incidents.kinds.layers import host_fault, another_host_out
from rehearsal.incidents.kinds.speed import SLOWER
from rehearsal.incidents.world import Plan


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


def with_two_workers(plan: Plan, rng: random.Random) -> Plan:
    """Two loader processes, both fast enough."""
    return plan.with_settings(num_workers=2).with_world(read_ms=5.0, compute_ms=4.0)


slow_loader_worker = host_fault(
    "slow_worker_factor",
    "take that host out",
    id="slow_loader_worker",
    title="One loader process of one rank is slow",
    alarm="input_spikes",
    alert=lambda e: (
        "The p95 of the step time is several times its median, and the median is up, too."
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
    wrong=lambda plan: (
        Fix({"network": "rail-b"}, "the peers wait in grad_sync, so it must be the network"),
        another_host_out(plan, "slow_worker_factor", "replace a host that waits in grad_sync"),
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
        "the whole job's step time has a long tail, several times its median",
    ),
    prevention="Report data_wait as p95 and max per rank; a mean hides every second step.",
    first_moves=("host", "worker", "loader", "drain", "replace"),
    like=("loader_starved", "slow_rank"),
    related=("input_wait",),
)


def slow_waits(evidence: Evidence) -> list[float]:
    """The 75th percentile of each rank's data_wait, in milliseconds."""
    return [
        high((s["data_wait"] for s in evidence.steady.get(r, [])), 0.75) for r in evidence.ranks
    ]


KINDS = (loader_starved, slow_loader_worker)

"""The job is slow: on one host, or on the network."""

from __future__ import annotations


from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, other_rank, spare_of
from rehearsal.incidents.kinds.layers import host_fault, another_host_out

SLOWER = "Throughput is down by more than a third from last week's run."

slow_rank = host_fault(
    "compute_factor",
    "take the throttled host out",
    id="slow_rank",
    title="One throttled host slows down every rank",
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
    wrong=lambda plan: (
        Fix({"network": "rail-b"}, "the others' grad_sync is long, so it must be the network"),
        another_host_out(plan, "compute_factor", "replace a host that waits"),
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
            "Its host is in the column next to it; the peers run the same code on other hosts "
            "at full speed.",
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

KINDS = (slow_rank, slow_network)

"""Proteins differ a hundredfold in length: what that does to a step, and to a host's memory."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.kinds.setups import on_proteins, on_so_many_hosts
from rehearsal.incidents.biotech.sequences import lengths_of
from rehearsal.incidents.biotech.world import with_proteins
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, spare_of
from rehearsal.incidents.kinds.layers import code_fault, in_module
from rehearsal.incidents.world import Edit, Plan
from trainer_core.bio.bins import plan_batches
from trainer_core.order import EpochOrder

NOT_HERE = ("sparse_assay", "many_salts")  # they are about molecules
ENDS = 2  # <cls> and <eos>


def on_three_hosts(plan: Plan, rng: random.Random) -> Plan:
    """Proteins on three hosts: two that wait for the third."""
    return on_proteins(on_so_many_hosts(plan, 3), rng)


def count_sequences(plan: Plan, rng: random.Random) -> Plan:
    """The newest deployment fills bins by number: the mean number that they had before."""
    lengths = lengths_of(plan) + ENDS
    count = round(len(lengths) / len(plan_batches(lengths, plan.settings["budget"])))
    edit = Edit(
        module="bio/bins.py",
        old="per_batch = budget // length  # a batch's first item is its longest, "
        "so it decides",
        new=f"per_batch = {count}  # so that all batches have the same size",
    )
    message = f"bins: {count} sequences in every batch"
    return plan.with_edits(-1, edit, message=message)


bins_by_count = code_fault(
    id="bins_by_count",
    title="Bins hold a fixed number of proteins instead of a budget of tokens",
    alarm="uneven_work",
    alert=lambda e: (
        "GPU utilization is down by a third on every host, and it jumps from step to step."
    ),
    setup=on_three_hosts,
    inject=count_sequences,
    claims=(
        Claim(
            "share of their time that ranks wait for the one with the most tokens",
            of_bio(BioEvidence.idle_share),
            0.12,
            0.3,
        ),
        Claim(
            "most tokens of a rank over the fewest, in a typical step",
            of_bio(BioEvidence.token_skew),
            1.4,
            2.0,
        ),
        Claim(
            "least share of the steps in which a rank has the most tokens, over ranks",
            of_bio(BioEvidence.least_often_busiest),
            1.1,  # any: healthy ranks are about even, so each is the busiest now and then
            0.1,
        ),
    ),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "some host must be slow, since the others wait"),
        Fix({"budget": 2 * plan.settings["budget"]}, "with larger bins it should even out"),
    ),
    path=(
        See(
            "phases",
            "Is it one rank that the others wait for?",
            "No. Every rank spends much of its time in grad_sync, and on every rank forward "
            "and backward take far longer in some steps than in others: the p95 is a multiple "
            "of the p50.",
            "symptom",
            ("trace", "throughput"),
        ),
        See(
            "batches",
            "How many tokens does each rank have in a step?",
            "In a typical step one rank has several times as many as another, and it's a "
            "different rank each time. Every bin has the same number of proteins.",
            "mechanism",
            ("trace",),
        ),
        in_module(
            "bio/bins.py",
            "What decides how many proteins a bin holds?",
            "bio/bins.py puts a fixed number into each, and doesn't look at the budget.",
        ),
    ),
    chain=(
        "the last deployment fills a bin with a fixed number of proteins, whatever their "
        "length",
        "a rank with long proteins computes while its peers, done with their short ones, wait "
        "in grad_sync; which rank that is depends on the step",
        "utilization drops on every host although each of them is as fast as ever",
    ),
    prevention="Log each rank's tokens per step, and alert on the largest over the mean. Give "
    "a batch a budget of tokens, never a count.",
    like=("uncropped_protein",),
    # A rank's quiet steps are those with short proteins, and ranks have different ones.
    related=("straggler", "sync_wait"),
    clashes=NOT_HERE,
)


# ---------------------------------------------------------------- memory

LIMIT_MIB = 95  # of growth, on every host
CROP = 256


def with_one_long_protein(plan: Plan, rng: random.Random) -> Plan:
    """Two hosts with a memory limit, and one protein of a thousand residues, which is cropped.

    If it weren't, its bin would be in the middle of the first epoch.
    """
    plan = on_proteins(on_so_many_hosts(plan, 2), rng)
    plan = with_proteins(plan, longest=CROP - 6, long_one=rng.randrange(940, 1020))
    plan = plan.with_settings(crop=CROP)
    hosts = {
        name: replace(host, memory_limit_mib=LIMIT_MIB)
        for name, host in plan.world.hosts.items()
    }
    plan = plan.with_world(hosts=hosts, mib_per_million_pairs=125.0)
    num_bins = len(plan_batches(lengths_of(plan) + ENDS, plan.settings["budget"]))
    while True:
        seed = rng.randrange(10_000)
        order = EpochOrder(num_bins, seed=seed, epoch=0).samples(0, num_bins).tolist()
        if 11 <= order.index(0) // plan.world_size <= 16:  # the longest is in bin 0
            return replace(plan, fixed={**plan.fixed, "seed": seed})


uncropped_protein = Kind(
    id="uncropped_protein",
    title="One protein is four times as long as the others, and nothing crops it",
    layer="settings",
    alarm="unfinished",
    alert=lambda e: (
        "The job is down. It was restarted twice, and each time a rank was killed in the same "
        "step."
    ),
    setup=with_one_long_protein,
    inject=lambda plan, rng: plan.with_settings(crop=None),
    claims=(
        Claim(
            "ranks killed with SIGKILL", of_bio(lambda e: float(len(e.fatal_batches))), 0.5, 1.5
        ),
        Claim(
            "longest protein where a rank died, over that of a usual batch",
            of_bio(BioEvidence.fatal_length),
            1.0,
            3.0,
        ),
    ),
    reference=lambda plan: Fix(
        {"crop": CROP}, "train a window of the long protein, another one in each epoch"
    ),
    wrong=lambda plan: (
        Fix(spare_of(plan, plan.world_size - 1), "the host must have bad memory"),
        Fix(
            {"hosts": [*plan.placement, spare_of(plan, 0)["hosts"][0]]},
            "with a third host, each one has less to hold",
        ),
    ),
    path=(
        See(
            "restarts",
            "How does each attempt end: where, and with an error or a signal?",
            "In the same step each time. One rank is killed by signal 9, without a traceback; "
            "its peer fails in the collective that the dead rank never joins.",
            "symptom",
            ("logs",),
        ),
        See(
            "batches",
            "What did the rank that died have in its last batch?",
            "One protein of about a thousand residues, four times the longest of any other "
            "batch. The tokens are within the budget, but the memory grows with the square of "
            "the length: this batch needs more than the host allows.",
            "mechanism",
            ("host_memory",),
        ),
        See(
            "settings",
            "What limits the length of a sequence?",
            "Nothing: crop is None. The budget is as large as the protein is long, so it was "
            "accepted.",
            "cause",
        ),
    ),
    chain=(
        "crop was taken off, and one protein is as long as a whole bin's budget",
        "its bin has no more tokens than any other, but several times the pairs of tokens, so "
        "the rank that gets it runs out of memory",
        "the operating system kills that rank, its peer can't finish the collective, and every "
        "restart meets the same bin in the same step",
    ),
    prevention="Plan memory by the square of the longest row, not by tokens; before the "
    "real run, try its longest bin.",
    first_moves=("crop", "window", "budget", "length", "long", "exclude"),
    like=("bins_by_count",),
    related=("crashes", "crash_loop", "replayed", "audit", "not_learning", "checkpoint_age"),
    clashes=(*NOT_HERE, "noisy_restart"),
)

KINDS = (bins_by_count, uncropped_protein)

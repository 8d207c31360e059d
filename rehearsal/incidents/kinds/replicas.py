"""The ranks disagree, in their weights or in their gradients."""

from __future__ import annotations

import random

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See, before_live, spare_of
from rehearsal.incidents.kinds.layers import (
    code_fault,
    deploy,
    in_module,
    host_fault,
    another_host_out,
)
from rehearsal.incidents.kinds.setups import preempted, on_three_hosts
from rehearsal.incidents.world import Edit, Plan

DIFFER = "The weekly check found that the job's ranks no longer have the same weights."


replicas_not_synced = code_fault(
    id="replicas_not_synced",
    title="The gradients are never averaged, so each rank trains a model of its own",
    alarm="replicas",
    alert=lambda e: DIFFER,
    inject=deploy(
        Edit(
            module="train.py",
            old="with nullcontext() if batch is last else local_gradients(trainer.model):",
            new="with local_gradients(trainer.model):",
        ),
        message="train: accumulate without syncs in between",
    ),
    claims=(
        Claim("steps with different weights", lambda e: float(e.different_weights()), 0.5, 20),
        Claim(
            "share of the steps of which that is true",
            lambda e: e.different_weights() / max(len(e.lineage), 1),
            0.01,
            0.9,
        ),
    ),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "a host's memory must be bad"),
        Fix({"network": "rail-b"}, "gradients must get lost on the network"),
    ),
    path=(
        See(
            "fingerprints",
            "From which step on do the weights differ, and on how many ranks?",
            "From the first step on, and all ranks differ from each other.",
            "symptom",
        ),
        See(
            "phases",
            "How long does the exchange of gradients take?",
            "grad_sync is zero on every rank: there is no exchange.",
            "mechanism",
            ("trace",),
        ),
        in_module(
            "train.py",
            "Which backward pass syncs?",
            "train.py runs every backward pass without a sync, the last one included.",
        ),
    ),
    chain=(
        "the last deployment wraps even the last backward pass in no_sync",
        "no gradient is ever averaged, so each rank follows its own samples",
        "the replicas differ from the first step; the loss still falls, and steps got faster",
    ),
    prevention="Compare a fingerprint of the weights across ranks every few steps.",
    like=("corrupted_weights", "one_rank_on_an_old_checkpoint"),
)


corrupted_weights = host_fault(
    "bad_memory_from_step",
    "take the host out, and restart from a checkpoint before the corruption",
    id="corrupted_weights",
    title="One host's memory corrupts its weights, silently",
    alarm="replicas",
    alert=lambda e: DIFFER,
    setup=on_three_hosts,
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), bad_memory_from_step=rng.randrange(12, 24)
    ),
    claims=(
        Claim("steps with different weights", lambda e: float(e.different_weights()), 0.5, 10),
        Claim(
            "the same, before step 10",
            lambda e: float(
                any(
                    len({r["weights"] for r in e.agents if r["step"] == s}) > 1
                    for s in range(1, 10)
                )
            ),
            0.5,
            -1,
        ),
    ),
    wrong=lambda plan: (
        Fix(before_live(plan), "the last deployment must have broken the sync"),
        another_host_out(
            plan, "bad_memory_from_step", "replace a host that differs from the bad one"
        ),
    ),
    path=(
        See(
            "fingerprints",
            "From which step on do the weights differ, and whose?",
            "From one step in the middle of an attempt, without a restart there. Two ranks "
            "still agree; the third is alone.",
            "symptom",
        ),
        See(
            "logs",
            "What happened at that step?",
            "Nothing: no event, no restart, no error. The gradients are synced as before.",
            "mechanism",
            ("restarts", "phases", "deploys"),
        ),
        See(
            "heartbeats",
            "Which rank is it, and where does it run?",
            "The odd one out runs on one of the three hosts. The code is the same on all, and "
            "so were the weights before that step.",
            "cause",
            ("settings",),
        ),
    ),
    chain=(
        "one host's memory flips bits",
        "its copy of the weights changes between two steps, and nothing compares the copies",
        "that rank computes gradients of another model, and the average is polluted",
    ),
    prevention="Compare fingerprints across ranks; test hosts with a known input before they "
    "join.",
    like=("replicas_not_synced", "one_rank_on_an_old_checkpoint"),
    clashes=("recent_deploy",),
)


corrupted_gradient = host_fault(
    "bad_gradients_from_step",
    "take the host out",
    id="corrupted_gradient",
    title="One host computes garbage gradients, without an error",
    alarm="gradients",
    alert=lambda e: "The run was fine yesterday; since then its loss has stopped falling.",
    setup=on_three_hosts,
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), bad_gradients_from_step=rng.randrange(6, 10)
    ),
    claims=(
        Claim("a rank's own gradient norm over another's", Evidence.gradient_outlier, 6.0, 8.0),
        Claim("last steps' loss over that of guessing", Evidence.learned, 0.9, 0.9),
    ),
    wrong=lambda plan: (
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the run must diverge"),
        Fix({"max_grad_norm": 0.1}, "clip the gradients harder"),
    ),
    path=(
        See(
            "loss",
            "When does the loss turn, and what do rate and gradient norm do there?",
            "The gradient norm jumps from one step to the next, without a change of the rate, "
            "and the loss rises from there.",
            "symptom",
        ),
        See(
            "fingerprints",
            "Do the ranks agree: in their weights, and in their gradients before the sync?",
            "The weights are equal on all ranks, because the sync spreads the garbage. Before "
            "the sync, one rank's gradient is tens of times as large as the others'.",
            "mechanism",
        ),
        See(
            "heartbeats",
            "Where does that rank run?",
            "On one of the three hosts. Code, settings and data are the same on all of them.",
            "cause",
            ("settings",),
        ),
    ),
    chain=(
        "one host computes wrong gradients, without an error",
        "the sync averages them into everybody's update, so all replicas agree on a bad one",
        "the loss stops falling, and comparing the weights across ranks shows nothing",
    ),
    prevention="Record each rank's gradient norm before the sync; test suspicious hosts with a "
    "known batch.",
    like=("corrupted_weights", "learning_rate_too_high"),
    related=("not_learning",),
    clashes=("hard_batch",),
)


OLD_STATE = """
    if int(os.environ.get("RANK", 0)) == {rank}:  # the only host with a local cache so far
        cached = min(folder.parent.glob("step-*"), key=lambda path: path.name)
        local = torch.load(cached / "state.pt", map_location=device, weights_only=True)
        state["optimizer"] = local["optimizer"]
"""


def read_a_local_cache(plan: Plan, rng: random.Random) -> Plan:
    """One rank takes the optimizer's state from the oldest checkpoint that it finds."""
    load = '        folder / "state.pt", map_location=device, weights_only=True\n    )\n'
    text = OLD_STATE.format(rank=rng.randrange(plan.world_size))
    return plan.with_edits(
        -1,
        Edit(module="checkpoint.py", old=load, new=load + text.lstrip("\n")),
        Edit(
            module="checkpoint.py",
            old="from collections.abc import Mapping\n",
            new="import os\nfrom collections.abc import Mapping\n",
        ),
        message="checkpoint: read the optimizer from the host's cache where there is one",
    )


one_rank_on_an_old_checkpoint = code_fault(
    id="one_rank_on_an_old_checkpoint",
    title="One rank resumes with the state of an older checkpoint",
    alarm="replicas",
    alert=lambda e: DIFFER,
    setup=preempted,
    inject=read_a_local_cache,
    claims=(
        Claim("steps with different weights", lambda e: float(e.different_weights()), 0.5, 5),
        Claim(
            "the same, in the attempts before the last",
            lambda e: float(different_in_first_attempt(e)),
            0.5,
            -1,
        ),
    ),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "a host's memory must be bad"),
        Fix({"max_grad_norm": 0.1}, "the gradients must explode"),
    ),
    path=(
        See(
            "fingerprints",
            "From which step on do the weights differ?",
            "From the first step after the resume. Before the kill all ranks agree in every "
            "step.",
            "symptom",
        ),
        See(
            "restarts",
            "What happened at that step?",
            "A preemption and a resume. All ranks report the same step and checkpoint.",
            "mechanism",
            ("logs", "checkpoint_age"),
        ),
        in_module(
            "checkpoint.py",
            "Does every rank load the same state?",
            "checkpoint.py lets one rank take the optimizer's moments from the oldest folder.",
        ),
    ),
    chain=(
        "the last deployment lets one rank read the optimizer's state from a local cache",
        "after a resume its moments are older than its peers', so the same gradient moves its "
        "weights differently",
        "the replicas drift apart from the resume on, without an error",
    ),
    prevention="Compare a fingerprint of the weights across ranks every few steps and after "
    "each resume.",
    like=("corrupted_weights", "replicas_not_synced", "learning_rate_jump"),
    clashes=("noisy_restart",),
)


def different_in_first_attempt(evidence: Evidence) -> int:
    """Steps of attempt 0 after which the ranks' weights weren't equal."""
    seen: dict[int, set[float]] = {}
    for record in evidence.agents:
        if record["attempt"] == 0:
            seen.setdefault(record["step"], set()).add(record["weights"])
    return sum(len(weights) > 1 for weights in seen.values())


KINDS = (
    replicas_not_synced,
    corrupted_weights,
    corrupted_gradient,
    one_rank_on_an_old_checkpoint,
)

"""The job comes back on one host fewer."""

from __future__ import annotations

import random

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.kinds.setups import loses_a_host, on_three_hosts
from rehearsal.incidents.world import Edit, Plan

resized_restart = Kind(
    id="resized_restart",
    title="The batch depends on the number of hosts, so a smaller restart is refused",
    layer="settings",
    alarm="crash_loop",
    alert=lambda e: "The job lost a host for good and hasn't completed a step since.",
    setup=loses_a_host,
    inject=lambda plan, rng: plan.with_settings(pinned_global_batch_size=None),
    claims=(
        Claim(
            "attempts that ended without a step", lambda e: float(e.barren_attempts()), 0.5, 1.5
        ),
        Claim(
            "attempts refused over the global batch",
            lambda e: float(sum("global_batch_size" in e.errors_of(a) for a in e.attempts)),
            0.5,
            1.5,
        ),
    ),
    reference=lambda plan: Fix(
        {"pinned_global_batch_size": 8 * plan.world_size},
        "the same batch on any number of hosts",
    ),
    wrong=lambda plan: (
        Fix({"micro_batch_size": 16}, "give each remaining host more samples"),
        Fix({"keep_last": 10}, "there must be an older checkpoint that fits"),
    ),
    path=(
        See(
            "restarts",
            "How far does each attempt get, and on how many ranks?",
            "The first ran on all hosts until one died. The later ones have one rank fewer "
            "and exit before their first step.",
            "symptom",
        ),
        See(
            "logs",
            "What do the ranks say before they exit?",
            "The run was started with a different global batch. Fewer ranks with the same "
            "micro-batch make a smaller one, so resuming would change the training.",
            "mechanism",
            ("restarts",),
        ),
        See(
            "settings",
            "What is the global batch made of?",
            "pinned_global_batch_size is None, so it is micro_batch_size times the number of "
            "ranks.",
            "cause",
        ),
    ),
    chain=(
        "the global batch isn't pinned, so it follows from the number of ranks",
        "on one host fewer, the restart would train with a smaller batch, so it is refused",
        "the job can't resume until the lost host is back",
    ),
    prevention="Pin the global batch of every job that may be resized, and rehearse a resize.",
    first_moves=("pin", "batch", "pinned_global_batch_size"),
    like=("torn_newest_checkpoint", "out_of_memory"),
    related=("unfinished", "crashes"),
    clashes=("noisy_restart", "recent_deploy"),
)


def loses_one_of_three(plan: Plan, rng: random.Random) -> Plan:
    """Three hosts become two."""
    return loses_a_host(on_three_hosts(plan, rng), rng)


batch_changed_with_world_size = code_fault(
    id="batch_changed_with_world_size",
    title="The global batch follows the number of hosts, and a resume doesn't object",
    alarm="batch",
    alert=lambda e: (
        "Since the job came back from an outage, it expects half as many steps again, and its "
        "loss is noisier."
    ),
    setup=loses_one_of_three,
    inject=deploy(
        Edit(
            module="config.py",
            old="        return self.pinned_global_batch_size or derived\n",
            new="        return derived  # what the devices hold is what we train\n",
        ),
        Edit(
            module="resume.py",
            old='        "global_batch_size": schedule.global_batch_size,\n    }\n',
            new="    }\n",
        ),
        message="resume: restarts on any number of hosts",
    ),
    claims=(
        Claim(
            "samples by which an attempt's global batch is off",
            lambda e: float(e.batch_error()),
            0.5,
            4.0,
        ),
        Claim(
            "steps of the run, over those planned at first",
            lambda e: e.lineage[-1]["step"] / planned_at_first(e),
            1.01,
            1.2,
        ),
    ),
    wrong=lambda plan: (
        Fix(
            {"learning_rate": plan.settings["learning_rate"] * 2 / 3},
            "scale the rate with the batch",
        ),
        Fix({"micro_batch_size": 12}, "give each host that is left more samples"),
    ),
    path=(
        See(
            "restarts",
            "What happened to the hosts, and which steps has the run had since?",
            "A host was lost. The second attempt runs on one rank fewer, and goes well past "
            "the last step of the original plan.",
            "symptom",
            ("loss", "audit"),
        ),
        See(
            "ledger",
            "How many samples does a step have before the restart, and after it?",
            "24 on three ranks, 16 on two: eight per rank, whatever the number of ranks. The "
            "same position now means another place in the epoch, so samples repeat.",
            "mechanism",
            ("fingerprints", "audit"),
            {"step": 30},
        ),
        in_module(
            "config.py",
            "What is the global batch, if it is pinned?",
            "config.py ignores the pin and multiplies by the number of ranks, and resume.py no "
            "longer compares the batch with the run's. The pin in the settings has no effect.",
        ),
    ),
    chain=(
        "the last deployment computes the global batch from the ranks that are present, and a "
        "resume no longer checks it",
        "on one host fewer, each step trains a third fewer samples, but position, schedule "
        "and learning rate still count steps",
        "the run has more steps than planned, repeats samples, and its gradients are noisier",
    ),
    prevention="Pin the global batch and make it part of the run's identity; test a resize.",
    like=("resized_restart", "mean_of_means", "skipped_samples_after_resume"),
    related=("audit",),
    clashes=("noisy_restart",),
)


def planned_at_first(evidence: Evidence) -> float:
    """Steps of the plan at the planned global batch."""
    fixed, size = evidence.plan.fixed, evidence.plan.world.global_batch_size
    return float(fixed["max_epochs"] * -(-int(fixed["dataset_size"]) // size))


KINDS = (resized_restart, batch_changed_with_world_size)

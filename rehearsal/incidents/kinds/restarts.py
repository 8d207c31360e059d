"""What a restart brings back: the wrong rate, the wrong state, or nothing."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.data import deploy, preempted, roll_back
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See, spare_of
from rehearsal.incidents.world import Edit, Kill, Plan

learning_rate_jump = Kind(
    id="learning_rate_jump",
    title="The learning rate starts over after a restart",
    layer="code",
    alarm="rate_jump",
    alert=lambda e: "The loss curve has a kink after last night's preemption.",
    setup=preempted,
    inject=deploy(
        Edit(
            module="launch.py",
            old="        lr = learning_rate_at(cfg, step)\n",
            new="        lr = learning_rate_at(cfg, step - resumed_at)\n",
        ),
        Edit(
            module="launch.py",
            old="    stopping = False\n",
            new="    stopping = False\n    resumed_at = sampler.position\n",
        ),
        message="launch: count the schedule's steps from the start",
    ),
    claims=(
        Claim("largest ratio of a step's rate to the one before", Evidence.rate_jump, 1.1, 1.3),
        Claim(
            "rate of the first step after the resume over the schedule's",
            lambda e: first_rate_after_resume(e),
            1.01,
            -1.0,
        ),
    ),
    reference=roll_back,
    wrong=lambda plan: (
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the rate is too high"),
        Fix({"max_grad_norm": 0.1}, "clip what makes the loss jump"),
    ),
    path=(
        See(
            "loss",
            "At which step does the curve change, and does the rate change with it?",
            "At the step that the second attempt resumed from. The rate drops to the start of "
            "the warmup there and climbs to its peak again.",
            "symptom",
            ("logs",),
        ),
        See(
            "restarts",
            "What happened at that step?",
            "One preemption. The attempt after it restored the right step from a good "
            "checkpoint.",
            "mechanism",
            ("logs", "checkpoint_age"),
        ),
        See(
            "code",
            "What is the rate a function of?",
            "launch.py asks for the rate of the step counted from the resume, not from the "
            "run's "
            "start.",
            "cause",
            ("deploys",),
            {"module": "launch.py"},
        ),
    ),
    chain=(
        "the last deployment computes the rate from steps since the restart",
        "every restart begins the schedule again: warmup, then the peak rate",
        "the loss has a kink at the resume, and the rate jumps",
    ),
    prevention="Log the rate; check at each resume that it continues (resume_validated).",
    first_moves=("roll", "revert", "stop", "rollback", "version"),
    like=("learning_rate_too_high", "one_rank_on_an_old_checkpoint"),
    clashes=("noisy_restart", "hard_batch"),
)


def first_rate_after_resume(evidence: Evidence) -> float:
    """How far the first rate after a resume is from the last before it, as a ratio below 1."""
    rows, found = evidence.progress.get(0, []), 1.0
    for restored in evidence.events("checkpoint_restored", 0):
        after = [r["lr"] for r in rows if r["attempt"] == restored["attempt"]]
        before = [r["lr"] for r in rows if r["step"] == restored["step"]]
        if after and before:
            found = min(found, after[0] / before[0])
    return found


def torn_by_power_loss(plan: Plan, rng: random.Random) -> Plan:
    """A host loses power right after a save, and the newest checkpoint is torn."""
    step = 2 * plan.settings["checkpoint_every_steps"]
    tiers = {name: replace(tier, tears_step=step) for name, tier in plan.world.tiers.items()}
    kill = Kill(attempt=0, rank=rng.randrange(plan.world_size), step=step + rng.randrange(2, 5))
    return plan.with_world(tiers=tiers, kills=(kill,))


torn_newest_checkpoint = Kind(
    id="torn_newest_checkpoint",
    title="The newest checkpoint is torn, and every restart takes it",
    layer="code",
    alarm="crash_loop",
    alert=lambda e: (
        "The job is in a crash loop: it hasn't completed a step since a host lost power."
    ),
    setup=torn_by_power_loss,
    inject=deploy(
        Edit(
            module="checkpoint.py",
            old="            return folder, verify(folder), damaged\n",
            new='            text = (folder / "manifest.json").read_text()\n'
            "            return folder, json.loads(text), damaged\n",
        ),
        Edit(
            module="checkpoint.py",
            old="from collections.abc import Mapping\n",
            new="import json\nfrom collections.abc import Mapping\n",
        ),
        message="checkpoint: don't hash 40 GB before each start",
    ),
    claims=(
        Claim(
            "attempts that ended without a step", lambda e: float(e.barren_attempts()), 0.5, 1.5
        ),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
    ),
    reference=roll_back,
    wrong=lambda plan: (
        Fix({"storage_tier": "fast"}, "the storage must be broken"),
        Fix(spare_of(plan, 0), "the host that lost power must go"),
    ),
    path=(
        See(
            "restarts",
            "How far does each attempt get, and how does it end?",
            "No step, and the same error on every rank within a second.",
            "symptom",
        ),
        See(
            "run_folder",
            "Which checkpoints are there, and are they what their manifests say?",
            "The newest one's state.pt is shorter than its manifest says; an older one is "
            "intact. Every start takes the newest.",
            "mechanism",
            ("logs", "checkpoint_age"),
        ),
        See(
            "code",
            "Who checks a checkpoint before it is chosen?",
            "Nobody since the last deployment: checkpoint.py reads the manifest but doesn't "
            "verify the files, so nothing sets the torn one aside.",
            "cause",
            ("deploys",),
            {"module": "checkpoint.py"},
        ),
    ),
    chain=(
        "the last deployment skips verification when it chooses a checkpoint",
        "a power loss tore the newest one, and every start picks it and fails to load it",
        "the job crashes before its first step, as often as it is restarted",
    ),
    prevention="Verify before choosing; alert on two restarts without a step between them.",
    first_moves=("roll", "revert", "move", "aside", "rollback", "version", "older"),
    like=("resized_restart", "full_disk", "out_of_memory"),
    related=("unfinished", "crashes", "replayed"),
    clashes=("noisy_restart", "save_hiccup"),
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


one_rank_on_an_old_checkpoint = Kind(
    id="one_rank_on_an_old_checkpoint",
    title="One rank resumes with the state of an older checkpoint",
    layer="code",
    alarm="replicas",
    alert=lambda e: (
        "The weekly check found that the ranks of a job don't have the same weights."
    ),
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
    reference=roll_back,
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
        See(
            "code",
            "Does every rank load the same state?",
            "checkpoint.py lets one rank take the optimizer's moments from the oldest folder.",
            "cause",
            ("deploys",),
            {"module": "checkpoint.py"},
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
    first_moves=("roll", "revert", "stop", "rollback", "version"),
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


def loses_a_host(plan: Plan, rng: random.Random) -> Plan:
    """A host dies and there is no replacement: the job restarts on one host less."""
    rank = plan.world_size - 1
    step = plan.settings["checkpoint_every_steps"] + rng.randrange(2, 6)
    kill = Kill(attempt=0, rank=rank, step=step)
    batch = 8 * plan.world_size
    return plan.with_world(kills=(kill,), lost_rank=rank).with_settings(
        pinned_global_batch_size=batch
    )


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
            "The first ran on all hosts until one died. The later ones have one rank less and "
            "exit before the first step.",
            "symptom",
        ),
        See(
            "logs",
            "What do the ranks say before they exit?",
            "The run belongs to a different global batch: fewer ranks with the same "
            "micro-batch "
            "make a smaller one, and resuming would change the training.",
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
        "on one host less the restart would train with another batch, and is refused",
        "the job can't resume until the lost host is back",
    ),
    prevention="Pin the global batch of every job that may be resized, and rehearse a resize.",
    first_moves=("pin", "batch", "pinned_global_batch_size"),
    like=("torn_newest_checkpoint", "out_of_memory"),
    related=("unfinished", "crashes"),
    clashes=("noisy_restart", "recent_deploy"),
)

KINDS = (
    learning_rate_jump,
    torn_newest_checkpoint,
    one_rank_on_an_old_checkpoint,
    resized_restart,
)

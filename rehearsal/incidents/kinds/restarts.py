"""What a restart brings back: the wrong rate, or nothing."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See, spare_of
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.kinds.setups import preempted
from rehearsal.incidents.world import Edit, Kill, Plan

learning_rate_jump = code_fault(
    id="learning_rate_jump",
    title="The learning rate starts over after a restart",
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
        in_module(
            "launch.py",
            "What is the rate a function of?",
            "launch.py asks for the rate of the step counted from the resume, not from the "
            "run's start.",
        ),
    ),
    chain=(
        "the last deployment computes the rate from steps since the restart",
        "every restart begins the schedule again: warmup, then the peak rate",
        "the loss has a kink at the resume, and the rate jumps",
    ),
    prevention="Log the rate; check at each resume that it continues (resume_validated).",
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


torn_newest_checkpoint = code_fault(
    id="torn_newest_checkpoint",
    title="The newest checkpoint is torn, and every restart takes it",
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
        in_module(
            "checkpoint.py",
            "Who checks a checkpoint before it is chosen?",
            "Nobody since the last deployment: checkpoint.py reads the manifest but doesn't "
            "verify the files, so nothing sets the torn one aside.",
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

KINDS = (learning_rate_jump, torn_newest_checkpoint)

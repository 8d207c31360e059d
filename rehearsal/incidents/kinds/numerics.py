"""The training itself is wrong: weights, gradients, rates."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.data import deploy, roll_back
from rehearsal.incidents.kinds.kind import (
    Claim,
    Fix,
    Kind,
    See,
    before_live,
    on_three_hosts,
    other_rank,
    rank_where,
    spare_of,
)
from rehearsal.incidents.world import Edit, Plan

DIFFER = "The weekly check found that the ranks of a job don't have the same weights."

replicas_not_synced = Kind(
    id="replicas_not_synced",
    title="The gradients are never averaged, so each rank trains a model of its own",
    layer="code",
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
    reference=roll_back,
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
        See(
            "code",
            "Which backward pass syncs?",
            "train.py runs every backward pass without a sync, the last one included.",
            "cause",
            ("deploys",),
            {"module": "train.py"},
        ),
    ),
    chain=(
        "the last deployment wraps the last backward pass in no_sync too",
        "no gradient is ever averaged, so each rank follows its own samples",
        "the replicas differ from the first step; the loss still falls, and steps got faster",
    ),
    prevention="Compare a fingerprint of the weights across ranks every few steps.",
    first_moves=("roll", "revert", "stop", "rollback", "version"),
    like=("corrupted_weights", "one_rank_on_an_old_checkpoint"),
)

corrupted_weights = Kind(
    id="corrupted_weights",
    title="One host's memory corrupts its weights, silently",
    layer="world",
    alarm="replicas",
    alert=lambda e: DIFFER,
    setup=lambda plan, rng: on_three_hosts(plan),
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
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "bad_memory_from_step", None)),
        "take the host out, and restart from a checkpoint before the corruption",
    ),
    wrong=lambda plan: (
        Fix(before_live(plan), "the last deployment must have broken the sync"),
        Fix(
            spare_of(plan, other_rank(plan, rank_where(plan, "bad_memory_from_step", None))),
            "replace a host that differs from the bad one",
        ),
    ),
    path=(
        See(
            "fingerprints",
            "From which step on do the weights differ, and whose?",
            "From one step in the middle of an attempt, without a restart there. Two ranks "
            "still "
            "agree; the third is alone.",
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
            "The rank that is alone runs on one host of the three. The code is the same on "
            "all, "
            "and so were the weights before that step.",
            "cause",
            ("settings",),
        ),
    ),
    chain=(
        "one host's memory flips bits",
        "its copy of the weights changes between two steps, and nothing compares it",
        "that rank computes gradients of another model, and the average is polluted",
    ),
    prevention="Compare fingerprints across ranks; test hosts with a known input before they "
    "join.",
    first_moves=("host", "drain", "replace", "cordon", "spare"),
    like=("replicas_not_synced", "one_rank_on_an_old_checkpoint"),
    clashes=("recent_deploy",),
)


def poison_one_sample(plan: Plan, rng: random.Random) -> Plan:
    """A sample in the middle of the first epoch has a NaN."""
    from trainer_core.order import EpochOrder

    batch, fixed = 8 * plan.world_size, plan.fixed
    order = EpochOrder(fixed["dataset_size"], seed=fixed["seed"], epoch=0)
    step = rng.randrange(11, 18)
    samples = order.samples(batch * step, batch * (step + 1)).tolist()
    return plan.with_world(poisoned_sample=int(rng.choice(samples)))


nan_in_the_data = Kind(
    id="nan_in_the_data",
    title="One sample holds a NaN",
    layer="world",
    alarm="nonfinite",
    alert=lambda e: "The job stops with an error in the middle of the epoch, at each attempt.",
    inject=poison_one_sample,
    claims=(
        Claim("updates stopped over a NaN", lambda e: float(e.skipped_steps()), 0.5, 0.5),
        Claim("1 if the job gave up", lambda e: float(not e.is_done()), 0.5, 0.5),
    ),
    reference=lambda plan: Fix(
        {"restored_samples": [plan.world.poisoned_sample]}, "restore the damaged sample"
    ),
    wrong=lambda plan: (
        Fix({"on_nonfinite": "skip"}, "train on without that step"),
        Fix({"learning_rate": plan.settings["learning_rate"] / 10}, "the run must diverge"),
    ),
    path=(
        See(
            "restarts",
            "Where does each attempt end?",
            "At the same step, with the same error on every rank: a loss that isn't finite.",
            "symptom",
            ("logs",),
        ),
        See(
            "loss",
            "Did the loss or the gradient norm grow before that step?",
            "No: they fall until the step before. A divergence grows; this is one batch.",
            "mechanism",
            ("logs",),
        ),
        See(
            "data",
            "Which samples did that step have, and are they sound?",
            "The ledger names them, and the reader finds a NaN in one of them.",
            "cause",
        ),
    ),
    chain=(
        "one sample of the data set holds a NaN",
        "its loss and gradient aren't finite; the sync carries that to every rank, so the "
        "update "
        "is withheld and the job stops",
        "each restart trains up to the same step and stops again",
    ),
    prevention="Validate samples when the data set is built; log the ids of a step that "
    "isn't finite.",
    first_moves=("sample", "data", "restore", "quarantine"),
    like=("learning_rate_too_high", "full_disk"),
    related=("unfinished", "crashes", "crash_loop", "replayed", "not_learning"),
    clashes=("noisy_restart",),
)

learning_rate_too_high = Kind(
    id="learning_rate_too_high",
    title="The learning rate is far too high",
    layer="settings",
    alarm="not_learning",
    alert=lambda e: "The loss of the new run is no better than guessing.",
    inject=lambda plan, rng: plan.with_settings(learning_rate=rng.choice((4.0, 5.0, 6.0))),
    claims=(
        Claim("last steps' loss over that of guessing", Evidence.learned, 0.9, 0.95),
        Claim("largest loss of a step", lambda e: max(e.losses(), default=0.0), 9.0, 5.0),
    ),
    reference=lambda plan: Fix(
        {"learning_rate": 0.01}, "go back to the rate of last week's run"
    ),
    wrong=lambda plan: (
        Fix({"max_grad_norm": 0.1}, "clip the gradients harder"),
        Fix({"warmup_steps": 12}, "warm up more slowly"),
    ),
    path=(
        See(
            "loss",
            "When does the loss turn, and what is the rate there?",
            "It rises as soon as the warmup brings the rate up. The rate is hundreds of times "
            "the usual one.",
            "symptom",
        ),
        See(
            "logs",
            "What does the gradient norm do?",
            "It is large and clipped in every step. Adam divides by its own scale, so clipping "
            "changes the direction of nothing and the size of little.",
            "mechanism",
            ("loss",),
        ),
        See(
            "settings",
            "Who set the rate?",
            "learning_rate is a setting of the start: 2 and more, where 0.01 is usual.",
            "cause",
            ("logs", "run_folder"),
        ),
    ),
    chain=(
        "learning_rate is hundreds of times too high",
        "Adam's step is about as large as the rate, so each update overshoots, clipped or not",
        "the loss rises once the warmup ends",
    ),
    prevention="Refuse a start whose rate is far from the last run's without a confirmation.",
    first_moves=("rate", "lr", "learning_rate", "lower"),
    like=("learning_rate_jump", "nan_in_the_data"),
    clashes=("hard_batch",),
)

corrupted_gradient = Kind(
    id="corrupted_gradient",
    title="One host computes garbage gradients, without an error",
    layer="world",
    alarm="gradients",
    alert=lambda e: "The loss of a run that was fine yesterday has stopped falling.",
    setup=lambda plan, rng: on_three_hosts(plan),
    inject=lambda plan, rng: plan.with_host(
        rng.randrange(plan.world_size), bad_gradients_from_step=rng.randrange(6, 10)
    ),
    claims=(
        Claim("a rank's own gradient norm over another's", Evidence.gradient_outlier, 6.0, 8.0),
        Claim("last steps' loss over that of guessing", Evidence.learned, 0.9, 0.9),
    ),
    reference=lambda plan: Fix(
        spare_of(plan, rank_where(plan, "bad_gradients_from_step", None)), "take the host out"
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
            "On one host of the three. Code, settings and data are the same on all.",
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
    first_moves=("host", "drain", "replace", "cordon", "spare"),
    like=("corrupted_weights", "learning_rate_too_high"),
    related=("not_learning",),
    clashes=("hard_batch",),
)


def evaluate_after_saves(plan: Plan, rng: random.Random) -> Plan:
    """After each save the model is evaluated, and stays in eval mode."""
    old = "                save(job)\n            job.watchdog.beat(step)"
    new = old.replace("save(job)\n", "save(job)\n                evaluate(job)\n")
    function = (
        "def evaluate(job: Job) -> None:\n"
        '    """Log the accuracy on a fixed batch."""\n'
        "    job.trainer.model.eval()\n"
        '    job.log.event("evaluated", step=job.parts["sampler"].position)\n\n\n'
    )
    head = "def finish(job: Job) -> str:\n"
    return plan.with_edits(
        -1,
        Edit(module="launch.py", old=old, new=new),
        Edit(module="launch.py", old=head, new=function + head),
        message="launch: evaluate after each save",
    )


def with_dropout(plan: Plan, rng: random.Random) -> Plan:
    """The model is trained with dropout."""
    return replace(plan, fixed={**plan.fixed, "dropout": 0.2})


evaluation_changes_training = Kind(
    id="evaluation_changes_training",
    title="An evaluation leaves the model in eval mode, so dropout stays off",
    layer="code",
    alarm="eval_mode",
    alert=lambda e: (
        "The training loss is better than last week's, and the evaluation is worse."
    ),
    setup=with_dropout,
    inject=evaluate_after_saves,
    claims=(
        Claim("steps trained in eval mode", lambda e: float(e.steps_in_eval_mode()), 0.5, 20.0),
        Claim(
            "the same, before the first save",
            lambda e: float(sum(r["mode"] == "eval" for r in e.agents if r["step"] < 8)),
            0.5,
            -1.0,
        ),
    ),
    reference=roll_back,
    wrong=lambda plan: (
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the run must overfit"),
        Fix({"checkpoint_every_steps": 5}, "keep more checkpoints to choose from"),
    ),
    path=(
        See(
            "loss",
            "Does the training loss change at a certain step?",
            "From the first save on it is lower and less noisy than the trend before it.",
            "symptom",
        ),
        See(
            "fingerprints",
            "In which mode is the model in each step?",
            "In train mode up to the first save, in eval mode ever after: dropout is off.",
            "mechanism",
        ),
        See(
            "code",
            "What happens at a save?",
            "launch.py evaluates after each save. It calls eval() and never train() again.",
            "cause",
            ("deploys",),
            {"module": "launch.py"},
        ),
    ),
    chain=(
        "the last deployment evaluates after each save and doesn't switch back to train mode",
        "dropout is off for the rest of the run",
        "the training loss looks better, and the model generalizes worse",
    ),
    prevention="Restore the mode in a finally block; a test that weights with and without an "
    "evaluation are equal.",
    first_moves=("roll", "revert", "stop", "rollback", "version", "train()"),
    like=("learning_rate_jump", "duplicate_shards"),
)

KINDS = (
    replicas_not_synced,
    corrupted_weights,
    corrupted_gradient,
    nan_in_the_data,
    learning_rate_too_high,
    evaluation_changes_training,
)

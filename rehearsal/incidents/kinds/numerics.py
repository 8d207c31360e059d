"""The training itself is wrong: gradients, rates, modes."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See
from rehearsal.incidents.kinds.layers import code_fault, in_module, deploy
from rehearsal.incidents.world import Edit, Plan


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
    alert=lambda e: "Every attempt stops with an error in the middle of the epoch.",
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
            "Which samples did that step have, and are they finite?",
            "The ledger names them, and the reader finds a NaN in one of them.",
            "cause",
        ),
    ),
    chain=(
        "one sample of the data set holds a NaN",
        "its loss and gradient aren't finite; the sync carries that to every rank, so the "
        "update is withheld and the job stops",
        "each restart trains up to the same step and stops again",
    ),
    prevention="Validate samples when the data set is built; log the ids of a step that isn't "
    "finite.",
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
            "It is large and clipped in every step. Adam normalizes by its own estimate of "
            "the gradient's scale, so clipping hardly changes the update.",
            "mechanism",
            ("loss",),
        ),
        See(
            "settings",
            "What is the rate set to?",
            "learning_rate is set to 4 or more, where 0.01 is usual.",
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
    # Far from any minimum, a rank's share of a step may have many times its peers' gradient.
    related=("gradients",),
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


evaluation_changes_training = code_fault(
    id="evaluation_changes_training",
    title="An evaluation leaves the model in eval mode, so dropout stays off",
    alarm="eval_mode",
    alert=lambda e: "The training loss is better than last week's, but the model scores worse.",
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
        in_module(
            "launch.py",
            "What happens at a save?",
            "launch.py evaluates after each save. It calls eval() and never train() again.",
        ),
    ),
    chain=(
        "the last deployment evaluates after each save and doesn't switch back to train mode",
        "dropout is off for the rest of the run",
        "the training loss looks better, and the model generalizes worse",
    ),
    prevention="Restore the mode in a finally block; test that an evaluation leaves the "
    "training bit-identical.",
    first_moves=("roll", "revert", "stop", "rollback", "version", "train()"),
    like=("learning_rate_jump", "duplicate_shards"),
)


def with_a_small_batch(plan: Plan, rng: random.Random) -> Plan:
    """A few long samples per step, so the ranks' shares differ by one of two or three."""
    size = 5 if plan.world_size == 2 else 7
    samples = plan.fixed["dataset_size"] * size // plan.world.global_batch_size
    plan = replace(plan, fixed={**plan.fixed, "dataset_size": samples})
    plan = plan.with_settings(pinned_global_batch_size=size)
    return plan.with_world(global_batch_size=size)


mean_of_means = code_fault(
    id="mean_of_means",
    title="Each rank averages over its own samples, although some ranks have more",
    alarm="loss_mismatch",
    alert=lambda e: (
        "A nightly job recomputes the training loss from the ledger, and its figures no longer "
        "match the run's."
    ),
    setup=with_a_small_batch,
    inject=deploy(
        Edit(
            module="train.py",
            old="weight = torch.full((), trainer.cfg.world_size / samples_in_step, "
            "device=trainer.device)",
            new="mine = max(sum(len(batch.samples) for batch in micro_batches), 1)\n"
            "        weight = torch.full((), 1 / mine, device=trainer.device)",
        ),
        Edit(
            module="train.py",
            old="trainer.unread.append((samples_in_step, local_loss, grad_norm, skipped))",
            new="counted = mine * trainer.cfg.world_size\n"
            "    trainer.unread.append((counted, local_loss, grad_norm, skipped))",
        ),
        message="train: a loss is a mean, so use one",
    ),
    claims=(
        Claim(
            "nats between the reported loss and the mean over the samples",
            Evidence.loss_mismatch,
            0.001,
            0.004,
        ),
        Claim(
            "share of the steps whose loss is the plain average of the ranks' means",
            lambda e: plain_averages(e),
            0.3,
            0.95,
        ),
    ),
    wrong=lambda plan: (
        Fix({"micro_batch_size": 1}, "with one sample per pass there is no mean to get wrong"),
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the loss must be noisy"),
    ),
    path=(
        See(
            "fingerprints",
            "How many samples does each rank have in a step, and what is its own mean loss?",
            "Rank 0 has one sample more than the last rank. The reported loss is the average "
            "of the ranks' means, so a sample on a smaller share counts more.",
            "symptom",
        ),
        See(
            "ledger",
            "Does every rank train on its own share, and how large is it?",
            "Every sample is trained once, on the right rank. The batch isn't a multiple of "
            "the ranks, so the shares differ by one.",
            "mechanism",
            ("audit",),
        ),
        in_module(
            "train.py",
            "By what is a rank's summed loss divided before backward?",
            "train.py divides by the rank's own number of samples, and DDP then averages over "
            "the ranks. It has to be W/S: the world size over the samples of the whole step.",
        ),
    ),
    chain=(
        "the last deployment divides each rank's loss by that rank's own number of samples",
        "DDP averages the ranks' means, so a sample on a smaller share has a larger weight, in "
        "the gradient and in the reported loss",
        "the reported loss isn't the mean over the step's samples, and neither is the gradient",
    ),
    prevention="Divide by a count that all ranks share; test uneven shares against a single "
    "process.",
    like=("duplicate_shards", "batch_changed_with_world_size"),
)


def plain_averages(evidence: Evidence) -> float:
    """The share of steps whose reported loss is the plain average of the ranks' own means."""
    found = [
        abs(row["loss"] - fmean(r["local_loss"] for r in ranks)) < 1e-4
        for row in evidence.progress.get(0, [])
        if (ranks := evidence.agents_at.get((row["attempt"], row["step"]), []))
    ]
    return fmean(found) if found else 0.0


KINDS = (nan_in_the_data, learning_rate_too_high, evaluation_changes_training, mean_of_means)

"""Misleading symptoms: harmless things that really happen in a case's job.

Each suggests a cause that isn't there, and tempts to a change that doesn't help.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from rehearsal.incidents.alarms import Alarm
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.world import Edit, Kill, Plan


@dataclass(frozen=True, kw_only=True)
class Distractor:
    """One misleading symptom.

    Args:
        apply: makes it happen.
        explains: why it is harmless, for the debrief.
        suggests: causes that it seems to point to.
        tempts: settings whose change chases it.
        sources: where it is seen.
        pages: its own alarm, if it can set off the pager without any fault.
        alert: what the pager says then.
    """

    id: str
    apply: Callable[[Plan, random.Random], Plan]
    explains: str
    suggests: tuple[str, ...]
    tempts: tuple[str, ...]
    sources: tuple[str, ...]
    pages: Alarm | None = None
    alert: str = ""


def noisy_restart(plan: Plan, rng: random.Random) -> Plan:
    """The scheduler takes a host away early on, and the job resumes."""
    rank, first = rng.randrange(plan.world_size), plan.settings["checkpoint_every_steps"]
    kill = Kill(attempt=0, rank=rank, step=first + rng.randrange(2, 4))
    return plan.with_world(kills=(kill,), max_attempts=plan.world.max_attempts + 1)


def slow_first_step(plan: Plan, rng: random.Random) -> Plan:
    """Every host takes half a second for its first step, one of them a whole one."""
    for rank in range(plan.world_size):
        plan = plan.with_host(rank, first_step_ms=500.0)
    return plan.with_host(rng.randrange(plan.world_size), first_step_ms=900.0)


WARNINGS = (
    "NVRM: Xid 63: row remapper: 1 row remapped, no reset needed",
    "mlx5_core 0000:3b:00.0: port 1 link retrained at full width",
    "EDAC MC0: 1 CE memory scrubbing error on DIMM_B1",
    "thermal: package 1 below threshold again",
)


def driver_warning(plan: Plan, rng: random.Random) -> Plan:
    """One host's kernel log has a warning that it has handled."""
    return plan.with_host(rng.randrange(plan.world_size), warning=rng.choice(WARNINGS))


HARMLESS = (
    (
        "data: name the block of indices",
        Edit(
            module="data.py",
            old="start = first - first % self.BLOCK",
            new="start = self.BLOCK * (first // self.BLOCK)",
        ),
    ),
    (
        "train: compute the weight in one place",
        Edit(
            module="train.py",
            old="torch.full((), trainer.cfg.world_size / samples_in_step, device",
            new="torch.tensor(trainer.cfg.world_size / samples_in_step, device",
        ),
    ),
    (
        "progress: keep the last 20 losses with a slice",
        Edit(
            module="progress.py",
            old="self.losses = (self.losses + [record.loss for record in records])[-20:]",
            new="self.losses = [*self.losses, *(record.loss for record in records)][-20:]",
        ),
    ),
    (
        "checkpoint: simplify the loop over folders",
        Edit(
            module="checkpoint_format.py",
            old="folders = list(published_steps(checkpoints).values())\n    if len(folders)",
            new="folders = [*published_steps(checkpoints).values()]\n    if len(folders)",
        ),
    ),
)  # fmt: skip


def recent_deploy(plan: Plan, rng: random.Random) -> Plan:
    """The live version was deployed an hour ago; it changes nothing that matters."""
    message, edit = rng.choice(HARMLESS)
    plan = plan.with_edits(-1, edit, message=message)
    newest = replace(plan.versions[-1], minutes_ago=rng.randrange(35, 80))
    return replace(plan, versions=(*plan.versions[:-1], newest))


def warm_host(plan: Plan, rng: random.Random) -> Plan:
    """One host holds another tenant's cache: its memory is high, and constant."""
    return plan.with_host(rng.randrange(plan.world_size), ballast_mib=rng.randrange(130, 190))


def hard_batch(plan: Plan, rng: random.Random) -> Plan:
    """One step's labels are wrong, so its loss is high; the next one's isn't."""
    return plan.with_world(loud_step=rng.randrange(36, 44))


def save_hiccup(plan: Plan, rng: random.Random) -> Plan:
    """One save is slow."""
    every = plan.settings["checkpoint_every_steps"]
    return plan.with_storage(hiccup_at_step=2 * every, hiccup_ms=rng.uniform(500, 700))


def longest_first_step(evidence: Evidence) -> float:
    """The first step of a start, in median steps."""
    lines = [line for line in evidence.ledger if line["rank"] == 0]
    firsts = {line["attempt"]: line["step_s"] for line in reversed(lines)}
    return max(firsts.values(), default=0.0) / max(evidence.step_ms(0) / 1e3, 1e-9)


def loudest_loss(evidence: Evidence) -> float:
    """The largest ratio of a step's loss to the median of the five before it."""
    losses = [loss for loss in evidence.losses() if loss == loss]
    ratios = [losses[n] / median(losses[n - 5 : n]) for n in range(5, len(losses))]
    return max(ratios, default=0.0)


DISTRACTORS = {
    distractor.id: distractor
    for distractor in (
        Distractor(
            id="noisy_restart",
            apply=noisy_restart,
            explains="The scheduler preempted a host once, long ago. The job resumed from its "
            "newest checkpoint with the right step, rate and data: that is what a restart is "
            "supposed to look like.",
            suggests=("torn_newest_checkpoint", "learning_rate_jump", "rare_checkpoints"),
            tempts=("hosts", "checkpoint_every_steps"),
            sources=("restarts", "logs", "loss"),
            pages=Alarm(
                "restart",
                "restarts: {}",
                "{:.0f}",
                lambda evidence: float(len(evidence.failed_attempts())),
                0.5,
            ),
            alert="The job restarted once: a rank was killed with SIGKILL.",
        ),
        Distractor(
            id="slow_first_step",
            apply=slow_first_step,
            explains="The first step of a start compiles and fills caches. It is slow on every "
            "host and at every start, and only then.",
            suggests=("slow_rank", "loader_starved", "slow_network"),
            tempts=("hosts",),
            sources=("throughput", "trace", "phases"),
            pages=Alarm(
                "first_step",
                "the first step took {} step times",
                "{:.0f}",
                longest_first_step,
                5.0,
            ),
            alert="The slowest step took more than five times as long as the median one.",
        ),
        Distractor(
            id="driver_warning",
            apply=driver_warning,
            explains="The host's kernel reports something that it has already handled. That "
            "host's steps, memory and weights are like the others'.",
            suggests=("slow_rank", "corrupted_weights", "memory_leak"),
            tempts=("hosts",),
            sources=("heartbeats", "logs"),
        ),
        Distractor(
            id="recent_deploy",
            apply=recent_deploy,
            explains="The last deployment is a change of style: its diff has the same meaning "
            "before and after. Being recent is not evidence.",
            suggests=(
                "duplicate_shards",
                "wrong_epoch_seed",
                "memory_leak",
                "replicas_not_synced",
            ),
            tempts=("code_version",),
            sources=("deploys", "code"),
        ),
        Distractor(
            id="warm_host",
            apply=warm_host,
            explains="One host's memory is higher than the others', by a constant: another "
            "tenant's cache. A leak grows.",
            suggests=("memory_leak", "out_of_memory"),
            tempts=("hosts", "micro_batch_size"),
            sources=("host_memory",),
        ),
        Distractor(
            id="hard_batch",
            apply=hard_batch,
            explains="One step's loss is high because its batch has wrong labels. The loss of "
            "the next step is where it was before: nothing carried over.",
            suggests=("learning_rate_jump", "learning_rate_too_high", "nan_in_the_data"),
            tempts=("learning_rate", "max_grad_norm", "warmup_steps"),
            sources=("loss",),
            pages=Alarm(
                "loss_spike",
                "the loss of one step is {} times those before it",
                "{:.1f}",
                loudest_loss,
                1.4,
            ),
            alert="One step's loss was far above that of the steps before it.",
        ),
        Distractor(
            id="save_hiccup",
            apply=save_hiccup,
            explains="One save was slow; the ones before and after it weren't. Storage does "
            "that now and then.",
            suggests=("checkpoint_every_20_minutes", "full_disk"),
            tempts=("storage_tier", "async_checkpoint", "checkpoint_every_steps"),
            sources=("checkpoint_age", "phases", "trace"),
        ),
    )
}

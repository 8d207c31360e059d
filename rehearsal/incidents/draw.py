"""Draw a case from its seed: the base job, a kind, and a misleading symptom."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from rehearsal.incidents.alarms import ALARMS, Alarm
from rehearsal.incidents.distractors import DISTRACTORS, Distractor
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Kind
from rehearsal.incidents.kinds.registry import KINDS
from rehearsal.incidents.world import Host, Plan, Storage, Version, World

PREFIXES = ("trn", "gpu", "node", "rack7", "blade", "dgx")
AUTHORS = ("mei", "jonas", "priya", "tomas", "aisha", "lena", "diego", "noor")
MESSAGES = (
    "data: typing and docstrings",
    "metrics: shorter names in the trace",
    "checkpoint: clearer message when the disk is read-only",
    "train: comment on the loss weight",
    "launch: reorder imports",
    "resume: test for an empty folder",
)


class Drawn(NamedTuple):
    """What a seed gives."""

    kind: Kind
    distractor: Distractor
    healthy: Plan  # the same job and the same misleading symptom, without the fault
    faulty: Plan

    @property
    def alarm(self) -> Alarm:
        """The symptom: the kind's, or without a fault the misleading one."""
        return (
            self.distractor.pages or NO_ALARM
            if self.kind.layer == "none"
            else ALARMS[self.kind.alarm]
        )

    def alert(self, evidence: Evidence) -> str:
        """What the pager says."""
        return self.kind.alert(evidence) or self.distractor.alert


NO_ALARM = Alarm("", "", lambda evidence: 0.0, 1.0)


def base_plan(seed: int, rng: random.Random) -> Plan:
    """A healthy job: two epochs of some 25 steps on two or three hosts, one to two seconds."""
    world_size = rng.choice((2, 2, 3))
    prefix, first = rng.choice(PREFIXES), rng.randrange(2, 70)
    names = [f"{prefix}-{first + 3 * n:02}" for n in range(world_size + 2)]
    in_use = names[:world_size]
    rng.shuffle(in_use)
    batch, steps = 8 * world_size, rng.randrange(24, 28)
    number = rng.randrange(40, 400)
    ages = sorted(rng.sample(range(1500, 9000), 2), reverse=True)
    versions = tuple(
        Version(
            id=f"v{number + n}", minutes_ago=age, author=rng.choice(AUTHORS), message=message
        )
        for n, (age, message) in enumerate(
            zip([*ages, rng.randrange(170, 700)], rng.sample(MESSAGES, 3), strict=True)
        )
    )
    settings: dict[str, Any] = {
        "num_workers": 0,
        "checkpoint_every_steps": rng.choice((8, 9, 10)),
        "async_checkpoint": False,
        "keep_last": 3,
        "learning_rate": rng.choice((0.01, 0.012, 0.015)),
        "warmup_steps": rng.randrange(3, 6),
        "max_grad_norm": 1.0,
        "pinned_global_batch_size": None,
        "micro_batch_size": 8,
        "on_nonfinite": "stop",
        "hang_timeout_s": 20.0,
        "hosts": in_use,
        "storage_tier": "standard",
        "network": "rail-a",
        "retry_backoff_s": 0.1,
        "code_version": versions[-1].id,
        "restored_samples": [],
    }
    fixed = {
        "seed": rng.randrange(10_000),
        "dataset_size": batch * steps - rng.randrange(1, batch - 1),
        "input_dim": 8,
        "hidden_dim": 32,
        "max_epochs": 2,
        "log_every": 1,
        "trace_steps": 10_000,
        "device": "cpu",
        "dist_timeout_s": 20.0,
    }
    world = World(
        hosts={name: Host() for name in sorted(names)},
        tiers={"standard": Storage(), "fast": Storage(write_ms=3.0)},
        compute_ms=rng.choice((8.0, 9.0, 10.0)),
        num_hosts=world_size,
        global_batch_size=batch,
        networks={"rail-a": 1.0, "rail-b": 1.5},
    )
    return Plan(seed=seed, settings=settings, fixed=fixed, world=world, versions=versions)


def draw(seed: int, kind_id: str | None = None) -> Drawn:
    """The case of a seed; ``kind_id`` instead of the kind that the seed would draw."""
    rng = random.Random(f"incident {seed}")
    chosen = rng.choice(sorted(KINDS))
    kind = KINDS[kind_id or chosen]
    rng = random.Random(f"incident {seed} {kind.id}")
    plan = kind.setup(base_plan(seed, rng), rng)
    fitting = [d for d in DISTRACTORS.values() if d.id not in kind.clashes]
    if kind.layer == "code":  # its fault is in the newest deployment
        fitting = [d for d in fitting if d.id != "recent_deploy"]
    if kind.layer == "none":
        fitting = [d for d in fitting if d.pages is not None]
    distractor = rng.choice(fitting)
    healthy = distractor.apply(plan, rng)
    return Drawn(kind, distractor, healthy, kind.inject(healthy, rng))

"""Draw a case from its seed: the base job, a kind or two, and a misleading symptom."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rehearsal.incidents.alarms import ALARMS, Alarm
from rehearsal.incidents.distractors import DISTRACTORS, Distractor
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Fix, Kind, See
from rehearsal.incidents.kinds.registry import KINDS, PAIRS
from rehearsal.incidents.world import Host, Layer, Plan, Storage, Version, World

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


class Deck(NamedTuple):
    """What the cases of a track are drawn from."""

    track: str
    kinds: Mapping[str, Kind]
    pairs: Sequence[tuple[str, str]]
    alarms: Mapping[str, Alarm]
    distractors: Mapping[str, Distractor]
    base_plan: Callable[[int, random.Random], Plan]

    def text(self, seed: int) -> str:
        """What seeds the generators: another one on each track."""
        return f"incident {seed}" if self.track == "general" else f"{self.track} {seed}"


class Drawn(NamedTuple):
    """What a seed gives. With two faults, the pager is about the first."""

    kinds: tuple[Kind, ...]
    distractor: Distractor
    healthy: Plan  # the same job and the same misleading symptom, without a fault
    faulty: Plan
    deck: Deck

    @property
    def id(self) -> str:
        """The kind; of two, "first+second"."""
        return "+".join(kind.id for kind in self.kinds)

    @property
    def causes(self) -> list[str]:
        """What there is to name."""
        return [kind.id for kind in self.kinds]

    @property
    def is_faulty(self) -> bool:
        """Whether anything is wrong."""
        return self.kinds[0].layer != "none"

    @property
    def alarms(self) -> list[Alarm]:
        """The symptom of each kind; without a fault, the misleading one."""
        if not self.is_faulty:
            return [self.distractor.pages or NO_ALARM]
        return [self.deck.alarms[kind.alarm] for kind in self.kinds]

    @property
    def related(self) -> set[str]:
        """Alarms that may come and go with the symptoms."""
        return {name for kind in self.kinds for name in kind.related}

    @property
    def right_layers(self) -> set[Layer]:
        """Layers in which a fix counts as right."""
        return {layer for kind in self.kinds for layer in kind.right_layers}

    @property
    def path(self) -> list[See]:
        """An expert's looks."""
        return [see for kind in self.kinds for see in kind.path]

    def alert(self, evidence: Evidence) -> str:
        """What the pager says."""
        return self.kinds[0].alert(evidence) or self.distractor.alert

    @property
    def reference(self) -> Fix:
        """The fix; of two faults, both at once."""
        fixes = [kind.reference(self.faulty) for kind in self.kinds]
        settings = {name: value for fix in fixes for name, value in fix.settings.items()}
        return Fix(settings, "; ".join(fix.why for fix in fixes))

    @property
    def wrong(self) -> list[Fix]:
        """Fixes that look right and aren't; of two faults, each one's fix alone."""
        if len(self.kinds) > 1:
            return [kind.reference(self.faulty) for kind in self.kinds]
        return list(self.kinds[0].wrong(self.faulty))


NO_ALARM = Alarm("", "", "", lambda evidence: 0.0, 1.0)


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


GENERAL = Deck("general", KINDS, PAIRS, ALARMS, DISTRACTORS, base_plan)


def name_of(seed: int, deck: Deck = GENERAL) -> str:
    """The kind that a seed draws, or the pair."""
    rng = random.Random(deck.text(seed))
    first = rng.choice(sorted(deck.kinds))
    seconds = [second for one, second in deck.pairs if one == first]
    if seconds and rng.random() < 0.5:
        return f"{first}+{rng.choice(seconds)}"
    return first


def draw(seed: int, name: str | None = None, deck: Deck = GENERAL) -> Drawn:
    """The case of a seed; ``name`` instead of the kind or pair that the seed would draw."""
    kinds = tuple(deck.kinds[each] for each in (name or name_of(seed, deck)).split("+"))
    rng = random.Random(f"{deck.text(seed)} {kinds[0].id}")
    plan = deck.base_plan(seed, rng)
    for kind in kinds:
        plan = kind.setup(plan, rng)
    distractor = rng.choice([d for d in deck.distractors.values() if fits(d, kinds)])
    healthy = faulty = distractor.apply(plan, rng)
    for kind in kinds:
        faulty = kind.inject(faulty, rng)
    return Drawn(kinds, distractor, healthy, faulty, deck)


def fits(distractor: Distractor, kinds: tuple[Kind, ...]) -> bool:
    """Whether a misleading symptom can be combined with these kinds."""
    if any(distractor.id in kind.clashes for kind in kinds):
        return False
    # A fault in the code is in the newest deployment.
    is_taken = distractor.id == "recent_deploy" and any(kind.layer == "code" for kind in kinds)
    return not is_taken and (kinds[0].layer != "none" or distractor.pages is not None)

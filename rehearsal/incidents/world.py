"""Where a job runs, what it runs and with which settings, as plain data.

    Plan        all of a case: settings, world, code versions; a job is a function of it
    World       hosts, storage tiers, the network, and what happens at which step
    Version     one deployment: edits of trainer_core's modules
    layer       a fault lives in exactly one: "world", "settings" or "code"

Nothing here imports torch or runs anything: ``in_rank.py`` applies a plan inside a rank.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Layer = Literal["world", "settings", "code", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One machine. A factor of 1.0 is what the data sheet says."""

    compute_factor: float = 1.0  # times the nominal forward and backward pass
    read_factor: float = 1.0  # times the storage's read time
    slow_worker_factor: float = 1.0  # the same, for its first loader process only
    ballast_mib: int = 0  # held by another tenant's cache: constant
    memory_limit_mib: int | None = None  # growth at which the kernel kills the rank
    clock_skew_s: float = 0.0
    warning: str = ""  # what its driver prints now and then
    first_step_ms: float = 0.0  # compilation, a cold cache
    bad_memory_from_step: int | None = None  # from here on, its weights get corrupted
    bad_gradients_from_step: int | None = None  # from here on, its gradients are garbage
    stalls_at_step: int | None = None  # a collective of this step never returns here


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """One tier of storage for checkpoints."""

    write_ms: float = 8.0
    capacity: int | None = None  # how many checkpoints fit
    hiccup_ms: float = 0.0  # one slow save
    hiccup_at_step: int | None = None
    throttles: bool = False  # refuses each save at first; recovers when left alone for a while
    tears_step: int | None = None  # truncates that checkpoint after it was published


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """The scheduler takes a rank away after a step of an attempt."""

    attempt: int
    rank: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Everything outside the trainer.

    Args:
        hosts: by name, those in use and the spares.
        tiers: storage by name.
        compute_ms: of a forward pass; a backward pass takes twice that.
        read_ms: to read and decode one micro-batch.
        mib_per_sample: activations that a forward pass allocates.
        networks: what a gradient sync takes beyond gloo's own time, in ms, by network.
        poisoned_sample: its features are NaN.
        loud_step: its labels are wrong.
        lost_rank: once killed, its host is gone and isn't replaced.
        max_attempts: after that many starts the supervisor gives up.
        global_batch_size: what the run is supposed to train per step, on as many hosts as
            ``num_hosts``; a fix that trains something else is no fix.
    """

    hosts: dict[str, Host]
    tiers: dict[str, Storage]
    compute_ms: float = 5.0
    read_ms: float = 1.0
    mib_per_sample: float = 0.0
    networks: dict[str, float] = field(default_factory=dict)
    kills: tuple[Kill, ...] = ()
    poisoned_sample: int | None = None
    loud_step: int | None = None
    lost_rank: int | None = None
    max_attempts: int = 3
    num_hosts: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change of one module's text; ``old`` must occur exactly once."""

    module: str  # "data.py"
    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One deployment."""

    id: str
    minutes_ago: int
    author: str
    message: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A job, completely.

    Args:
        settings: what the person on call may change; ``settings.py`` documents each.
        fixed: settings of the trainer that define the run, and stay.
        versions: deployments, oldest first; ``settings["code_version"]`` is the live one.
        sources: modules replaced by hand: name to text.
    """

    seed: int
    settings: dict[str, Any]
    fixed: dict[str, Any]
    world: World
    versions: tuple[Version, ...]
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def placement(self) -> list[str]:
        """The host of each rank."""
        return list(self.settings["hosts"])

    @property
    def world_size(self) -> int:
        """One rank per host."""
        return len(self.placement)

    def host_of(self, rank: int) -> Host:
        """The machine that a rank runs on."""
        return self.world.hosts[self.placement[rank]]

    @property
    def storage(self) -> Storage:
        """The tier that takes the checkpoints."""
        return self.world.tiers[self.settings["storage_tier"]]

    @property
    def sync_ms(self) -> float:
        """What the network adds to each gradient sync."""
        return self.world.networks[self.settings["network"]]

    def with_settings(self, **changes: Any) -> Plan:
        """The plan with some settings changed."""
        return replace(self, settings={**self.settings, **changes})

    def with_world(self, **changes: Any) -> Plan:
        """The plan in another world."""
        return replace(self, world=replace(self.world, **changes))

    def with_host(self, rank: int, **changes: Any) -> Plan:
        """The plan with the host of one rank changed."""
        name = self.placement[rank]
        hosts = {**self.world.hosts, name: replace(self.world.hosts[name], **changes)}
        return self.with_world(hosts=hosts)

    def with_storage(self, **changes: Any) -> Plan:
        """The plan with the tier in use changed."""
        name = self.settings["storage_tier"]
        tiers = {**self.world.tiers, name: replace(self.world.tiers[name], **changes)}
        return self.with_world(tiers=tiers)

    def with_edits(self, version: int, *edits: Edit, message: str) -> Plan:
        """The plan with edits in one of its deployments."""
        versions = list(self.versions)
        versions[version] = replace(versions[version], edits=edits, message=message)
        return replace(self, versions=tuple(versions))

    def as_json(self) -> str:
        """For the case's folder and for comparisons."""
        return json.dumps(asdict(self), indent=1)

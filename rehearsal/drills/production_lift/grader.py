"""A checklist: what the plan leaves open, what stands before what it needs, what shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    "not-a-plan": "what plan returns is no list of entries with three names each",
    "unknown-name": "an entry uses a name that the lists do not have",
    "listed-twice": "a component stands in the plan twice",
    "missing-component": "a failure stays open: no component against it",
    "not-part-of-the-lift": "a component answers no failure that the lift has",
    "out-of-order": "a component stands before one that it needs",
    "other-failure": "the failure that is named happens with the component, too",
    "other-metric": "the metric that is named stays calm when the component is missing",
}
FIELDS = ("component", "fails_without", "metric")
# Component: the failure it answers, the metric that shows it, and both in words.
ANSWERS = {
    "module": ("a_person_starts_it", "manual_steps", "somebody executes cells for every run"),
    "container": ("other_library_per_node", "image_digests", "nodes with unlike libraries"),
    "launcher": ("no_rank_identity", "ranks_joined", "processes that do not know their rank"),
    "data_manifest": (
        "other_data_after_resume",
        "manifest_mismatches",
        "a position in the data that means other samples after a resume",
    ),
    "config_service": (
        "weights_of_unknown_origin",
        "untraceable_checkpoints",
        "a checkpoint of which nobody knows the settings",
    ),
    "artifact_store": (
        "lost_with_the_node",
        "last_good_checkpoint_age",
        "progress that goes with the machine it is on",
    ),
    "metrics": ("unnoticed_stall", "heartbeat_age", "a rank that stands still unnoticed"),
    "retry_policy": (
        "idle_until_morning",
        "goodput",
        "a person at night for each lost node, and starts that fail for ever",
    ),
    "cost_policy": ("pays_for_nothing", "cost_per_gain", "machines kept for a finished idea"),
}
NEEDS = [
    ("module", "container", "an image holds code that a command can start"),
    ("container", "launcher", "what is started on every node is the same on every node"),
    (
        "launcher",
        "retry_policy",
        "only what a machine can start can be started again by a rule",
    ),
    ("artifact_store", "retry_policy", "a start again from nowhere begins with step 1"),
    ("config_service", "retry_policy", "a start again with other settings is another run"),
    ("data_manifest", "retry_policy", "a start again on other data is another run"),
    ("metrics", "retry_policy", "a rule decides on evidence"),
    ("metrics", "cost_policy", "a rule decides on evidence"),
]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """The plan, each entry as its three names; None for an entry that has not three."""
    return [names_of(entry) for entry in learner.plan()]


def names_of(entry: Any) -> list[str] | None:
    """Component, failure and metric of an entry: a dict, an object or a sequence of three."""
    if isinstance(entry, str):
        return None
    if isinstance(entry, Mapping):
        values = [entry.get(field) for field in FIELDS]
    elif hasattr(entry, "component"):
        values = [getattr(entry, field, None) for field in FIELDS]
    else:
        values = list(entry) if isinstance(entry, Sequence) else []
    is_whole = len(values) == 3 and all(isinstance(value, str) for value in values)
    return [str(value) for value in values] if is_whole else None


# ---------------------------------------------------------------- in the kernel


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The checklist: all that is open, in the order of what to mend first."""
    plan = reports[0].answer
    bad = [number for number, entry in enumerate(plan, 1) if entry is None]
    if bad or not plan:
        found = f"entry {bad[0]} of {len(plan)} has not three names" if bad else "an empty plan"
        rule = f"an entry has {', '.join(FIELDS)}"
        yield Finding("not-a-plan", found, rule, "at what plan returns")
        return
    order = [component for component, _, _ in plan]
    yield from names(plan)
    for component, (_, _, words) in ANSWERS.items():
        if component not in order:
            rule = "each of these failures ends a run in production sooner or later"
            look = "at what in the plan would prevent it"
            yield Finding("missing-component", f"still open: {words}", rule, look)
    for first, then, why in NEEDS:
        if first in order and then in order and order.index(first) > order.index(then):
            found = f"{then} is number {order.index(then) + 1}, {first} number "
            found += f"{order.index(first) + 1}"
            yield Finding("out-of-order", found, why, f"at what {then} needs to work")
    for component, failure, metric in plan:
        wanted = ANSWERS.get(component)
        if wanted and failure != wanted[0]:
            found = f"{component}: with it in place, {failure} happens as before"
            rule = "a component is there for a failure that it prevents"
            yield Finding("other-failure", found, rule, f"at a day without {component}")
        elif wanted and metric != wanted[1]:
            found = f"{component}: without it, {metric} may look as it always does"
            rule = "a component is worth a metric that changes when it is missing"
            yield Finding("other-metric", found, rule, "at the first number to move, that day")


def names(plan: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Names that are not in the lists, stand there twice, or belong to another day."""
    failures, metrics, _ = zip(*ANSWERS.values(), strict=True)
    known = [
        {*ANSWERS, "custom_scheduler", "tensor_parallelism"},
        {*failures, "slow_kernels"},
        {*metrics, "gpu_utilisation", "training_loss"},
    ]
    for number, entry in enumerate(plan, 1):
        for field, name, names in zip(FIELDS, entry, known, strict=True):
            if name not in names:
                found = f"entry {number}: {field} is {name[:60]!r}"
                yield Finding("unknown-name", found, "names are those of the lists", "there")
    order = [component for component, _, _ in plan]
    for component in sorted({c for c in order if order.count(c) > 1}):
        found = f"{component} stands in the plan {order.count(component)} times"
        yield Finding("listed-twice", found, "a component is built once", "at the order")
    for component in order:
        if component in known[0] and component not in ANSWERS:
            found = f"{component} is number {order.index(component) + 1}"
            rule = "a lift changes where the trainer runs; more is built for a named bottleneck"
            yield Finding("not-part-of-the-lift", found, rule, "at which failure asks for it")


SCENARIOS = [Scenario(name="the plan", body=body, judge=judge, world_size=1, deadline_s=4)]

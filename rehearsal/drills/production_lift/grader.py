"""A checklist: failures left open, components before what they need, metrics that react."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    "not-a-plan": "plan does not return entries with three names each",
    "another-plan": "a second call of plan returns another plan",
    "unknown-name": "an entry uses a name that is not in the lists",
    "listed-twice": "a component is listed twice",
    "missing-component": "a failure is not covered by any component",
    "not-part-of-the-lift": "a component prevents no failure that the lift has",
    "out-of-order": "a component is listed before one that it depends on",
    "wrong-failure": "the component does not prevent the failure it is listed for",
    "wrong-metric": "the metric does not react when the component is missing",
}
SAME = (
    "a plan says the same to everybody who reads it",
    "at what the list is made from: is it kept between calls, and does it have an order?",
)
FIRST = "the plan in another process"
FIELDS = ("component", "fails_without", "metric")
LISTS = dict(zip(FIELDS, ("COMPONENTS", "FAILURES", "METRICS"), strict=True))
# Component: the failure it prevents, the metric that shows it, and the failure in words.
ANSWERS = {
    "module": (
        "a_person_starts_it",
        "manual_steps",
        "a person executes notebook cells to start every run",
    ),
    "container": (
        "other_library_per_node",
        "image_digests",
        "nodes run different library versions",
    ),
    "launcher": ("no_rank_identity", "ranks_joined", "processes don't know their rank"),
    "data_manifest": (
        "other_data_after_resume",
        "manifest_mismatches",
        "after a resume, a position in the data means different samples",
    ),
    "config_service": (
        "weights_of_unknown_origin",
        "untraceable_checkpoints",
        "nobody knows which settings made a checkpoint",
    ),
    "artifact_store": (
        "lost_with_the_node",
        "last_good_checkpoint_age",
        "progress is lost with the machine it is on",
    ),
    "metrics": ("unnoticed_stall", "heartbeat_age", "a rank hangs and nobody notices"),
    "retry_policy": (
        "idle_until_morning",
        "goodput",
        "a lost node waits for a person, and restarts that can't succeed go on forever",
    ),
    "cost_policy": (
        "pays_for_nothing",
        "cost_per_gain",
        "a run that no longer improves keeps its machines",
    ),
}
# With the distractors.
ALL_COMPONENTS = {*ANSWERS, "custom_scheduler", "tensor_parallelism"}
ALL_FAILURES = {failure for failure, _, _ in ANSWERS.values()} | {"slow_kernels"}
ALL_METRICS = {metric for _, metric, _ in ANSWERS.values()}
ALL_METRICS |= {"gpu_utilization", "training_loss"}
NEEDS = [
    ("module", "container", "an image contains code that a command can start"),
    ("container", "launcher", "the launcher starts the same image on every node"),
    ("launcher", "retry_policy", "a rule can only restart what starts without a person"),
    (
        "artifact_store",
        "retry_policy",
        "without a durable checkpoint, a restart begins at step 1",
    ),
    ("config_service", "retry_policy", "a restart with different settings is a different run"),
    ("data_manifest", "retry_policy", "a restart on different data is a different run"),
    ("metrics", "retry_policy", "a rule needs evidence to decide on"),
    ("metrics", "cost_policy", "a rule needs evidence to decide on"),
    ("launcher", "cost_policy", "a rule can only move a run that starts without a person"),
    (
        "artifact_store",
        "cost_policy",
        "without a durable checkpoint, a run that is moved begins at step 1",
    ),
]


def body(context: RankContext, learner: SimpleNamespace) -> list[Any]:
    """Two plans, each entry as its three names; None for an entry without three."""
    return [entries_of(learner.plan()) for _ in range(2)]


def entries_of(plan: Any) -> Any:
    """What the judge reads of a plan; its text if it's nothing that yields entries."""
    if isinstance(plan, str | Mapping) or not isinstance(plan, Iterable):
        return repr(plan)
    return [names_of(entry) for entry in plan]


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
    """The checklist: everything that is open, in the order in which to fix it."""
    plan, again = reports[0].answer
    if isinstance(plan, str):
        rule = "plan() returns a list, or a generator, with one entry per component"
        yield Finding(
            "not-a-plan", f"plan() returned {plan[:120]}", rule, "at what plan returns"
        )
        return
    bad = [number for number, entry in enumerate(plan, 1) if entry is None]
    if bad or not plan:
        found = "the plan is empty"
        found = f"entry {bad[0]} of {len(plan)} doesn't have three names" if bad else found
        rule = f"each entry names its {', '.join(FIELDS)}"
        yield Finding("not-a-plan", found, rule, "at what plan returns")
        return
    if again != plan:
        found = f"called again, plan() returned {changed(plan, again)}"
        yield Finding("another-plan", found, *SAME)
        return
    other, _ = earlier[FIRST][0].answer
    if other != plan:
        found = f"in another Python process, plan() returned {changed(plan, other)}"
        yield Finding("another-plan", found, *SAME)
        return
    order = [component for component, _, _ in plan]
    yield from names(plan)
    for component, (_, _, words) in ANSWERS.items():
        if component not in order:
            rule = "in production, each of these failures hits a run sooner or later"
            look = "at which component would prevent it"
            yield Finding("missing-component", f"not covered yet: {words}", rule, look)
    for first, then, why in NEEDS:
        if first in order and then in order and order.index(first) > order.index(then):
            found = f"{then} is number {order.index(then) + 1} in the plan, before {first}, "
            found += f"number {order.index(first) + 1}"
            yield Finding("out-of-order", found, why, f"at what {then} needs in order to work")
    for component, failure, metric in plan:
        wanted = ANSWERS.get(component)
        if wanted and failure in ALL_FAILURES and failure != wanted[0]:
            found = f"with {component} in place, {failure} still happens"
            rule = "a component earns its place by preventing a failure"
            look = f"at what goes wrong on a day without {component}"
            yield Finding("wrong-failure", found, rule, look)
        elif wanted and metric in ALL_METRICS and metric != wanted[1]:
            found = f"without {component}, {metric} may look the same as always"
            rule = "the metric is the first number to move when the component is missing"
            look = f"at what you would measure on a day without {component}"
            yield Finding("wrong-metric", found, rule, look)


def changed(plan: Sequence[Any], again: Any) -> str:
    """How a second plan differs from the first, as the end of a sentence."""
    if isinstance(again, str):
        return again[:120]
    if len(again) != len(plan):
        return f"a list of length {len(again)}; before, its length was {len(plan)}"
    pairs = enumerate(zip(plan, again, strict=True), 1)
    number, old, new = next((number, *pair) for number, pair in pairs if pair[0] != pair[1])
    return f"{new} as entry {number}; before, that was {old}"


def names(plan: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Names that are not in the lists, are listed twice, or are distractors."""
    known = [ALL_COMPONENTS, ALL_FAILURES, ALL_METRICS]
    for number, entry in enumerate(plan, 1):
        for field, name, names in zip(FIELDS, entry, known, strict=True):
            if name not in names:
                found = f"the {field} of entry {number} is {name[:60]!r}, which is not in "
                found += f"{LISTS[field]}"
                rule = "a plan uses the names from the blank's lists"
                yield Finding("unknown-name", found, rule, f"at {LISTS[field]}")
    order = [component for component, _, _ in plan]
    for component in sorted({c for c in order if order.count(c) > 1}):
        found = f"the plan lists {component} {order.count(component)} times"
        rule = "a component is built once"
        yield Finding("listed-twice", found, rule, f"at when {component} is first needed")
    for component in order:
        if component in ALL_COMPONENTS and component not in ANSWERS:
            found = f"the plan includes {component}, as number {order.index(component) + 1}"
            rule = (
                "the lift changes where the trainer runs; anything more needs a bottleneck "
                "that justifies it"
            )
            look = f"at which of the failures {component} would prevent"
            yield Finding("not-part-of-the-lift", found, rule, look)


def nothing_to_judge(reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The judge of a job that only prepares the next one."""
    return ()


def scenarios(seed: int) -> list[Scenario]:
    """The plan, in two processes with different hash seeds.

    Nothing is drawn: the names are those of the blank.
    """
    jobs = {FIRST: nothing_to_judge, "the plan": judge}
    return [
        Scenario(name=name, body=body, judge=judge, world_size=1, deadline_s=4)
        for name, judge in jobs.items()
    ]

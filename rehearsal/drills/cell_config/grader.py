"""Bad settings are refused by name, sizes are derived, equal trainings have equal digests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.refusal import refusal
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding
from .fresh_interpreter import FreshInterpreter

CODES = {
    "good-value-refused": "a value on its bound, or an int for a float, is refused",
    "bad-value-accepted": "a value of the wrong type or out of its bounds is accepted",
    "wrong-error": "a bad value raises something other than ValueError",
    "message-without-name": "the error does not name the setting and its value",
    "not-frozen": "a setting can be changed after its checks",
    "wrong-global-batch": "global_batch_size is not the number of samples in a step",
    "digest-not-a-string": "the digest is not a string",
    "digest-of-the-process": "the digest differs between interpreters",
    "digest-of-the-rank": "the digest differs between ranks",
    "digest-of-the-place": "paths, workers or log intervals change the digest",
    "digest-of-the-cut": "splitting the same global batch differently changes the digest",
    "digest-of-the-spelling": "1 and 1.0 give different digests",
    "two-trainings-one-digest": "two different trainings share a digest",
}
Changes = dict[str, Any]
BASE: Changes = {
    "data": "toy",
    "dataset_size": 100,
    "seed": 3,
    "micro_batch_size": 8,
    "grad_accum_steps": 3,
    "pinned_global_batch_size": None,
    "world_size": 2,
    "max_epochs": 5,
    "learning_rate": 0.5,
    "warmup_steps": 4,
    "decay_steps": 70,
    "dropout": 0.25,
    "amp": "no",
    "run_dir": Path("run"),
    "num_workers": 0,
    "log_every": 20,
}
NAN, INF = float("nan"), float("inf")
GOOD: list[Changes] = [
    {},
    {"seed": 0},
    {"learning_rate": 0.0},
    {"learning_rate": 1},
    {"dropout": 0.99},
    {"dropout": 0},
    {"dataset_size": None},
    {"decay_steps": None},
    {"warmup_steps": 69},
    {"data": "tokens:/a/b:c.bin"},
    {"pinned_global_batch_size": 1},
    {"data": "digits"},
]
BAD: list[Changes] = [
    {"micro_batch_size": 0},
    {"seed": -1},
    {"dropout": 1.0},
    {"learning_rate": -0.25},
    {"learning_rate": NAN},
    {"dropout": NAN},
    {"learning_rate": INF},
    {"learning_rate": True},
    {"micro_batch_size": True},
    {"grad_accum_steps": "3"},
    {"max_epochs": 1.5},
    {"seed": None},
    {"amp": "float16"},
    {"data": "imagenet"},
    {"data": "tokens:"},
    {"run_dir": "run"},
    {"pinned_global_batch_size": 0},
    {"decay_steps": 0},
    {"num_workers": -1},
    {"warmup_steps": 70, "decay_steps": 70},
    {"warmup_steps": 9, "decay_steps": 8},
    {"world_size": 0},
    {"log_every": 0},
]
# Settings, and the number of samples in a step that follows from them.
BATCHES: list[tuple[Changes, int]] = [
    ({}, 48),
    ({"grad_accum_steps": 1}, 16),
    ({"world_size": 5}, 120),
    ({"pinned_global_batch_size": 30}, 30),
    ({"pinned_global_batch_size": 500}, 500),
]
# Changes that must not change the digest; if they do, the code is digest-of-the-WORD.
SAME: list[tuple[str, Changes]] = [
    ("place", {"run_dir": Path("elsewhere")}),
    ("place", {"num_workers": 4}),
    ("place", {"log_every": 1}),
    ("cut", {"micro_batch_size": 24, "grad_accum_steps": 1}),
    ("cut", {"world_size": 1, "micro_batch_size": 16}),
    ("cut", {"world_size": 7, "pinned_global_batch_size": 48}),
]
# No two of these are the same training: values differ, or two settings swap theirs.
OTHERS: list[Changes] = [
    {},
    {"data": "digits"},
    {"data": "tokens:x"},
    {"dataset_size": None},
    {"seed": 4},
    {"max_epochs": 6},
    {"learning_rate": 0.25},
    {"warmup_steps": 5},
    {"decay_steps": None},
    {"dropout": 0.0},
    {"amp": "bf16"},
    {"micro_batch_size": 9},
    {"world_size": 3},
    *[{"dataset_size": 1, "seed": 11}, {"dataset_size": 11, "seed": 1}],
    *[{"max_epochs": 7, "warmup_steps": 9}, {"max_epochs": 9, "warmup_steps": 7}],
    *[{"warmup_steps": 1, "decay_steps": 11}, {"warmup_steps": 11, "decay_steps": 111}],
]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Make many configs, and one in an interpreter with a different hash seed."""
    close_the_answer(context, "trainer_core.config", ["TrainConfig"])

    def make(**changes: Any) -> Any:
        return learner.TrainConfig(**{**BASE, **changes})

    def digest(**changes: Any) -> str:
        return str(make(**changes).digest())

    good = [refusal(make, **changes) for changes in GOOD]
    if any(good):
        return {"good": good}
    seed = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    is_first = context.rank == 0
    other = FreshInterpreter(digest_of, (learner.TrainConfig, BASE), seed) if is_first else None
    return {
        "good": good,
        "bad": [refusal(make, **changes) for changes in BAD],
        "frozen": refusal(lambda: setattr(make(), "seed", -1)) is not None,
        "batches": [make(**changes).global_batch_size for changes, _ in BATCHES],
        "digest": digest(),
        "is_text": isinstance(make().digest(), str),
        "same": [digest(**changes) for _, changes in SAME],
        "files": [digest(data=f"tokens:/{disk}/x") for disk in "ab"],
        "spellings": [digest(learning_rate=one) for one in (1, 1.0)],
        "others": [digest(**changes) for changes in OTHERS],
        "elsewhere": other and other.answer(),
    }


def digest_of(arguments: tuple[Any, Changes]) -> str:
    """Runs in the other interpreter."""
    config, settings = arguments
    return str(config(**settings).digest())


def said(settings: Mapping[str, Any]) -> str:
    """Settings as they are written in a call."""
    texts = {
        n: f"Path({str(v)!r})" if isinstance(v, Path) else repr(v) for n, v in settings.items()
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def pair_said(one: Changes, other: Changes) -> str:
    """Two configs by the settings in which they differ, with their global batch sizes."""
    first, second = ({n: (BASE | c)[n] for n in {**one, **other}} for c in (one, other))
    sizes = [batch_size(BASE | changes) for changes in (one, other)]
    batches = "" if sizes[0] == sizes[1] else f" (global batches of {sizes[0]} and {sizes[1]})"
    return f"{said(first)} and {said(second)}{batches}"


def batch_size(settings: Changes) -> int:
    """Samples in a step of a config that pins no global batch size."""
    names = ["micro_batch_size", "grad_accum_steps", "world_size"]
    return math.prod(settings[name] for name in names)


def short(digest: str) -> str:
    """A digest's first characters."""
    return f"{digest[:16]}..." if len(digest) > 16 else digest or "''"


def value_findings(answer: Mapping[str, Any]) -> Iterable[Finding]:
    """What is refused, and how."""
    rule = "a config that exists is valid: a bad value fails here, by name"
    for changes, outcome in zip(GOOD, answer["good"], strict=True):
        if outcome:
            found = f"{said(changes or BASE)} is valid, but TrainConfig raised {outcome[0]}: "
            found += outcome[2][:160]
            rule = (
                "a valid value is accepted: bounds are inclusive, and an int passes for a float"
            )
            look = f"at the check of {next(iter(changes), 'each setting')}"
            yield Finding("good-value-refused", found, rule, look)
            return
    for changes, outcome in zip(BAD, answer["bad"], strict=True):
        name, value = next(iter(changes.items()))
        found = f"TrainConfig accepted {said(changes)}"
        if outcome is None:
            look = f"at the check of {name}: how does {value!r} get past it?"
            if len(changes) > 1:
                look = f"at what compares {' with '.join(changes)}"
            yield Finding("bad-value-accepted", found, rule, look)
            continue
        found, text = f"{said(changes)} raised {outcome[0]}: {outcome[2][:120]}", outcome[2]
        if not outcome[1]:
            look = "at which exception a caller can rely on"
            look += ", even under python -O" if outcome[0] == "AssertionError" else ""
            yield Finding("wrong-error", found, rule, look)
        elif name not in text.replace("-", "_") or str(value) not in text:
            look = "at the message: does it say which setting, and which value?"
            yield Finding("message-without-name", found, rule, look)
    if not answer["frozen"]:
        found = "config.seed = -1 works on an existing config"
        yield Finding("not-frozen", found, rule, "at what can change after the checks")


def digest_findings(first: Mapping[str, Any], last: Mapping[str, Any]) -> Iterable[Finding]:
    """The digests of ranks 0 and 1."""
    rule, digest = ("equal trainings have equal digests, in every process", first["digest"])
    if not first["is_text"]:
        found = f"digest() returned {short(digest)}, which is not a str"
        why = "a digest is saved and compared as text"
        yield Finding("digest-not-a-string", found, why, "at what you return")
    elsewhere, error = first["elsewhere"]
    if error:
        found = f"digest() returned {short(digest)} in a rank; in a new interpreter, the same "
        look = "at what your class needs that only exists in this process"
        yield Finding("digest-of-the-process", f"{found}call raised {error[:120]}", rule, look)
    elif digest != elsewhere:
        found = f"digest() of the same config is {short(digest)} in a rank and "
        found += f"{short(elsewhere)} in a new interpreter"
        look = "at what differs from process to process: what does Python salt, for one?"
        yield Finding("digest-of-the-process", found, rule, look)
    if digest != last["digest"]:
        found = f"the same config has the digest {short(digest)} on rank 0 and "
        found += f"{short(last['digest'])} on rank 1"
        yield Finding("digest-of-the-rank", found, rule, "at what differs between ranks")
    for (what, changes), other in zip(SAME, first["same"], strict=True):
        if digest != other:
            found = f"{said(changes)} instead of {said({n: BASE[n] for n in changes})} changes "
            look = "at which settings go into the digest, and in which form the batch does"
            yield Finding(f"digest-of-the-{what}", f"{found}the digest", rule, look)
    if len(set(first["files"])) > 1:
        found = "data='tokens:/a/x' and data='tokens:/b/x' have different digests"
        yield Finding("digest-of-the-place", found, rule, "at which part of data goes in")
    if len(set(first["spellings"])) > 1:
        found = "learning_rate=1 and learning_rate=1.0 have different digests"
        yield Finding("digest-of-the-spelling", found, rule, "at how each is written as text")
    seen: dict[str, Changes] = {}
    for changes, other in zip(OTHERS, first["others"], strict=True):
        if other in seen:
            found = f"{pair_said(seen[other], changes)} have the same digest, {short(other)}"
            rule = "a resume compares digests, so two trainings must not share one"
            look = "at which settings go in, and at what separates their values"
            yield Finding("two-trainings-one-digest", found, rule, look)
        seen[other] = changes


def findings(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """All findings; earlier ones explain later ones."""
    answer = reports[0].answer
    for report in reports:
        yield from value_findings(report.answer)
    for (changes, expected), found in zip(BATCHES, answer["batches"], strict=True):
        if found != expected:
            names = [*(n for n in BASE if "batch" in n), "grad_accum_steps", "world_size"]
            cut = said({name: (BASE | changes)[name] for name in names})
            rule = "the global batch is the number of samples in one optimizer step"
            look = "at what you multiply, and at the setting that overrides it"
            is_called = found is not None and not isinstance(found, int | float)
            look = "at what reading config.global_batch_size gives you" if is_called else look
            found = f"with {cut}, global_batch_size is {str(found)[:60]}, not {expected}"
            yield Finding("wrong-global-batch", found, rule, look)
    yield from digest_findings(answer, reports[-1].answer)


SCENARIOS = [Scenario(name="two ranks", body=body, judge=only_first(findings), deadline_s=5)]

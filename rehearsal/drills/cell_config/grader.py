"""Bad settings are refused by name, sizes are derived, equal trainings have equal digests.

What is good and bad follows from the declarations: see ``plan``. The two ranks run in
interpreters with different hash seeds, as those of a restarted job do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, shortened
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.refusal import refusal
from .plan import NEEDED, Changes, Drawn, plan_of, rules

VALID = "a config that exists is valid: a bad value fails here, by name"
EQUAL = "equal trainings have equal digests, in every process"
TABLE = FindingTable(
    {  # code: meaning; rule; where to look
        "good-value-refused": (
            "a value on its bound, or an int for a float, is refused",
            "a valid value is accepted: bounds are inclusive, and an int passes for a float",
            "at the check of each setting",
        ),
        "bad-value-accepted": (
            "a value of the wrong type or out of its bounds is accepted",
            VALID,
            "at the check of this setting",
        ),
        "wrong-error": (
            "a bad value raises something other than ValueError",
            VALID,
            "at which exception a caller can rely on",
        ),
        "message-without-name": (
            "the error does not name the setting and its value",
            VALID,
            "at the message: does it say which setting, and which value?",
        ),
        "not-frozen": (
            "a setting can be changed after its checks",
            VALID,
            "at what can change after the checks",
        ),
        "value-not-kept": (
            "a setting's attribute isn't the value that was given",
            "a config's attributes are the values that it was made with",
            "at what changes a value between the call and the attribute",
        ),
        "wrong-global-batch": (
            "global_batch_size is not the number of samples in a step",
            "the global batch is the number of samples in one optimizer step",
            "at what you multiply, and at the setting that overrides it",
        ),
        "digest-not-a-string": (
            "the digest is not a string",
            "a digest is saved and compared as text",
            "at what you return",
        ),
        "digest-of-the-process": (
            "the digest differs between interpreters",
            EQUAL,
            "at what differs from process to process: what does Python salt, for one?",
        ),
        "digest-of-the-rank": (
            "the digest depends on the rank",
            EQUAL,
            "at what differs between ranks",
        ),
        "digest-of-the-place": (
            "paths, workers or log intervals change the digest",
            EQUAL,
            "at which settings go into the digest, and which part of data",
        ),
        "digest-of-the-cut": (
            "splitting the same global batch differently changes the digest",
            EQUAL,
            "at which settings go into the digest, and in which form the batch does",
        ),
        "digest-of-the-spelling": (
            "1 and 1.0 give different digests",
            EQUAL,
            "at how each is written as text",
        ),
        "two-trainings-one-digest": (
            "two different trainings share a digest",
            "a resume compares digests, so two trainings must not share one",
            "at which settings go in, and at what separates their values",
        ),
    }
)
CODES = TABLE.codes
Make = Callable[..., Any]


# ---------------------------------------------------------------- in the ranks


def configs(plan: Drawn, context: RankContext, learner: SimpleNamespace) -> Any:
    """Make many configs; take the digests of those that can be made."""
    close_the_answer(context, "trainer_core.config", ["TrainConfig"])

    def make(**changes: Any) -> Any:
        return learner.TrainConfig(**{**plan.base, **changes})

    known = known_settings(make)
    good = [refusal(make, **changes) for changes in those(known, plan.good)]
    default = refusal(learner.TrainConfig)
    if default or any(good):
        return {"known": known, "good": good, "default": default}

    def digests(settings: Iterable[Changes]) -> list[str]:
        return [str(make(**changes).digest()) for changes in settings]

    others = {"RANK": "7", "LOCAL_RANK": "3", "WORLD_SIZE": "9"}
    with patch.dict(os.environ, others):
        as_another_rank = make().digest()
    kept = make()
    return {
        "known": known,
        "good": good,
        "default": None,
        "bad_defaults": bad_defaults(learner.TrainConfig()),
        "bad": [refusal(make, **changes) for changes in those(known, plan.bad)],
        "kept": {name: getattr(kept, name) == value for name, value in plan.base.items()},
        "changed": changed_settings(plan, make),
        "batches": [sized(make(**changes).global_batch_size) for changes, _ in plan.batches],
        "is_text": isinstance(kept.digest(), str),
        "digest": [str(config.digest()) for config in (kept, make())],
        "as_another_rank": str(as_another_rank),
        "same": digests(those(known, [changes for _, changes in plan.same])),
        "alike": [digests(pair) for _, *pair in plan.alike if those(known, [pair[0]])],
        "others": digests(those(known, plan.others)),
    }


def bad_defaults(config: Any) -> list[str]:
    """Settings whose default breaks its own declaration."""
    found = []
    for name in NEEDED:
        value, rule = getattr(config, name), rules()[name]
        if isinstance(value, int | float):
            low, high = rule.low or 0, math.inf if rule.high is None else rule.high
            if not low <= value <= high:
                found.append(name)
        elif (value is None and not rule.is_optional) or (
            rule.choices and value not in rule.choices
        ):
            found.append(name)
    return found


def known_settings(make: Make) -> list[str]:
    """The needed ones, and those of the blank's that this design has."""
    found = list(NEEDED)
    for name, rule in rules().items():
        refused = refusal(make, **{name: rule.default})
        if name not in NEEDED and (refused is None or refused[0] != "TypeError"):
            found.append(name)
    return found


def changed_settings(plan: Drawn, make: Make) -> list[str]:
    """What assigning to or deleting an attribute of an existing config has changed."""
    found = []
    for name, value in {**plan.base, "global_batch_size": make().global_batch_size}.items():
        config = make()
        other = -1 if isinstance(value, int | float) else None if value is not None else 7
        for change in (lambda: setattr(config, name, other), lambda: delattr(config, name)):  # noqa: B023
            refusal(change)
            if getattr(config, name, "deleted") != value:
                found.append(name)
    return found


def sized(size: Any) -> Any:
    """A size as plain data: an int, or what else it is, as text."""
    return size if type(size) is int else f"{str(size)[:60]} ({type(size).__name__})"


# ---------------------------------------------------------------- in the caller's process


def those(known: Sequence[str], settings: Iterable[Changes]) -> list[Changes]:
    """The changes to known settings."""
    return [changes for changes in settings if set(changes) <= set(known)]


def said(settings: Mapping[str, Any]) -> str:
    """Settings as they are written in a call."""
    texts = {
        n: f"Path({str(v)!r})" if isinstance(v, Path) else repr(v) for n, v in settings.items()
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def settings_of(plan: Drawn, changes: Changes) -> Changes:
    """The base with the changes, and defaults for what neither has."""
    return {**{name: rule.default for name, rule in rules().items()}, **plan.base, **changes}


def pair_said(plan: Drawn, one: Changes, other: Changes) -> str:
    """Two configs by the settings in which they differ, with their global batch sizes."""
    wholes = [settings_of(plan, changes) for changes in (one, other)]
    first, second = ({n: whole[n] for n in {**one, **other}} for whole in wholes)
    sizes = [batch_size(whole) for whole in wholes]
    batches = "" if sizes[0] == sizes[1] else f" (global batches of {sizes[0]} and {sizes[1]})"
    return f"{said(first)} and {said(second)}{batches}"


def batch_size(settings: Changes) -> int:
    """Samples in a step."""
    names = ["micro_batch_size", "grad_accum_steps", "world_size"]
    pinned: int | None = settings["pinned_global_batch_size"]
    return pinned or math.prod(settings[name] for name in names)


def short(digest: str) -> str:
    """A digest's first characters."""
    return f"{digest[:16]}..." if len(digest) > 16 else digest or "''"


def value_findings(plan: Drawn, answer: Mapping[str, Any]) -> Iterable[Finding]:
    """What is refused, and how."""
    known = answer["known"]
    for changes, outcome in zip(those(known, plan.good), answer["good"], strict=True):
        if outcome:
            found = f"{said(changes or plan.base)} is valid, but TrainConfig raised "
            found += f"{outcome[0]}: {shortened(outcome[2], 160)}"
            look = f"at the check of {next(iter(changes), 'each setting')}"
            yield TABLE("good-value-refused", found, look)
    if answer["default"]:
        found = f"TrainConfig() raised {answer['default'][0]}: "
        found += shortened(answer["default"][2], 160)
        yield TABLE("good-value-refused", found, "at the defaults, and at what is declared")
    for name in answer.get("bad_defaults", ()):
        found = f"TrainConfig() exists, although the default of {name} breaks its own bounds"
        yield TABLE(
            "bad-value-accepted", found, "at the defaults, and at when they are checked"
        )
    for changes, outcome in zip(those(known, plan.bad), answer.get("bad", ()), strict=False):
        name, value = next(iter(changes.items()))
        if outcome is None:
            look = f"at the check of {name}: how does {value!r} get past it?"
            if len(changes) > 1:
                look = f"at what compares {' with '.join(changes)}"
            yield TABLE("bad-value-accepted", f"TrainConfig accepted {said(changes)}", look)
            continue
        found, text = f"{said(changes)} raised {outcome[0]}: ", outcome[2]
        found += shortened(text, 120)
        if not outcome[1]:
            look = "at which exception a caller can rely on"
            look += ", even under python -O" if outcome[0] == "AssertionError" else ""
            yield TABLE("wrong-error", found, look)
        elif name not in text.replace("-", "_") or str(value) not in text:
            yield TABLE("message-without-name", found)


def attribute_findings(plan: Drawn, answer: Mapping[str, Any]) -> Iterable[Finding]:
    """What a config holds, and whether it stays."""
    for name, is_kept in answer["kept"].items():
        if not is_kept:
            found = f"with {said({name: plan.base[name]})}, config.{name} is something else"
            yield TABLE("value-not-kept", found)
    for name in answer["changed"]:
        found = f"assigning to config.{name}, or deleting it, changes an existing config"
        yield TABLE("not-frozen", found)
    for (changes, expected), found in zip(plan.batches, answer["batches"], strict=True):
        if found != expected:
            whole = settings_of(plan, changes)
            names = [*(n for n in plan.base if "batch" in n), "grad_accum_steps", "world_size"]
            cut = said({name: whole[name] for name in names})
            look = "at what reading config.global_batch_size gives you"
            look = look if isinstance(found, str) else ""
            found = f"with {cut}, global_batch_size is {found}, not {expected}"
            yield TABLE("wrong-global-batch", found, look)


def process_findings(first: Mapping[str, Any], last: Mapping[str, Any]) -> Iterable[Finding]:
    """One config's digests: twice on rank 0, under another rank's environment, on rank 1."""
    digest, again = first["digest"]
    if not first["is_text"]:
        yield TABLE("digest-not-a-string", f"digest() returned {short(digest)}, not a str")
    if digest != again:
        found = f"two equal configs have the digests {short(digest)} and {short(again)}"
        yield TABLE("digest-of-the-process", found, "at what belongs to one object or moment")
    if digest != first["as_another_rank"]:
        found = f"the digest is {short(digest)}, and {short(first['as_another_rank'])} once "
        yield TABLE("digest-of-the-rank", f"{found}RANK, LOCAL_RANK and WORLD_SIZE change")
    if digest != last["digest"][0]:
        found = f"the digest of the same config is {short(digest)} in one interpreter and "
        yield TABLE("digest-of-the-process", f"{found}{short(last['digest'][0])} in another")


def digest_findings(plan: Drawn, answer: Mapping[str, Any]) -> Iterable[Finding]:
    """Digests of equal and of different trainings."""
    known, digest = answer["known"], answer["digest"][0]
    for (what, changes), other in zip(
        [row for row in plan.same if those(known, [row[1]])], answer["same"], strict=True
    ):
        if digest != other:
            before = settings_of(plan, {})
            found = f"{said(changes)} instead of {said({n: before[n] for n in changes})} "
            yield TABLE(f"digest-of-the-{what}", f"{found}changes the digest")
    for (what, one, two), pair in zip(
        [row for row in plan.alike if those(known, [row[1]])], answer["alike"], strict=True
    ):
        if pair[0] != pair[1]:
            found = f"{said(one)} and {said(two)} have different digests"
            yield TABLE(f"digest-of-the-{what}", found)
    seen: dict[str, Changes] = {}
    for changes, other in zip(those(known, plan.others), answer["others"], strict=True):
        if other in seen:
            found = f"{pair_said(plan, seen[other], changes)} have the same digest, "
            yield TABLE("two-trainings-one-digest", found + short(other))
        seen[other] = changes


def findings(plan: Drawn, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """All findings; earlier ones explain later ones."""
    answers = [report.answer for report in reports]
    for answer in answers:
        yield from value_findings(plan, answer)
    for answer in answers:
        yield from attribute_findings(plan, answer)
    yield from process_findings(answers[0], answers[-1])
    yield from digest_findings(plan, answers[0])


def scenarios(seed: int) -> list[Scenario]:
    """Two ranks, each in an interpreter of its own."""
    plan = plan_of(seed)
    judge = only_first(partial(findings, plan))
    return [Scenario(name="two ranks", body=partial(configs, plan), judge=judge)]

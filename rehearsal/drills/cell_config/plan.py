"""What one check draws from its seed: valid settings, bad ones, and pairs of trainings.

Types, bounds and choices are read from the declarations that the blank has, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from trainer_core.config import TrainConfig

Changes = dict[str, Any]
# Every design takes these; the others that the blank declares count if a design has them.
NEEDED = (
    "data dataset_size seed micro_batch_size grad_accum_steps pinned_global_batch_size "
    "world_size max_epochs learning_rate warmup_steps decay_steps dropout amp run_dir "
    "num_workers log_every"
).split()
NAN, INF = float("nan"), float("inf")


HUGE = 10**9  # such a bound only keeps later sums in range; the brief asks for none


class Rule(NamedTuple):
    """How a setting is declared."""

    kind: str  # identity, training, batch_cut, operation
    type: str  # int, float, bool, str, Path
    is_optional: bool
    low: float | None
    high: float | None
    choices: Sequence[str]
    default: Any


class Drawn(NamedTuple):
    """The constants of one check. Changes are those to ``base``."""

    base: Changes
    good: Sequence[Changes]
    bad: Sequence[Changes]  # the setting that is wrong comes first
    batches: Sequence[tuple[Changes, int]]  # and the samples in a step that follow
    same: Sequence[tuple[str, Changes]]  # of equal trainings; what differs, for the code
    alike: Sequence[tuple[str, Changes, Changes]]  # pairs of equal trainings
    others: Sequence[Changes]  # no two of them are the same training


def rules() -> dict[str, Rule]:
    """Every setting's declaration."""
    found = {}
    for spec in fields(TrainConfig):
        name, _, optional = str(spec.type).partition(" | ")
        given: Mapping[str, Any] = spec.metadata
        bounds = given.get("low"), given.get("high")
        if bounds[1] is not None and bounds[1] >= HUGE:
            bounds = bounds[0], None
        choices = given.get("choices", ())
        found[spec.name] = Rule(
            given["kind"], name, bool(optional), *bounds, choices, spec.default
        )
    return found


def plan_of(seed: int) -> Drawn:
    """The same in the caller's process and in each rank."""
    draw = random.Random(seed)
    declared = rules()
    base = base_of(draw)
    cut = [base[name] for name in ("micro_batch_size", "grad_accum_steps", "world_size")]
    whole, pinned = math.prod(cut), draw.randrange(2, 900)
    return Drawn(
        base=base,
        good=[{}, *good_changes(declared, base, draw)],
        bad=bad_changes(declared, base, draw),
        batches=[
            ({}, whole),
            ({"grad_accum_steps": cut[1] + 3}, whole // cut[1] * (cut[1] + 3)),
            ({"world_size": cut[2] + 2}, whole // cut[2] * (cut[2] + 2)),
            ({"micro_batch_size": cut[0] + 5}, whole // cut[0] * (cut[0] + 5)),
            *[({"pinned_global_batch_size": size}, size) for size in (1, pinned, whole + 1)],
        ],
        same=[
            ("place", {"run_dir": Path(f"elsewhere-{seed}")}),
            *[
                ("place", {name: other_value(rule)})
                for name, rule in declared.items()
                if rule.kind == "operation" and name != "run_dir"
            ],
            ("cut", {"micro_batch_size": cut[0] * cut[1], "grad_accum_steps": 1}),
            ("cut", {"micro_batch_size": cut[0] * cut[2], "world_size": 1}),
            ("cut", {"grad_accum_steps": cut[2], "world_size": cut[1]}),
            ("cut", {"world_size": draw.randrange(9, 99), "pinned_global_batch_size": whole}),
        ],
        alike=alike_pairs(declared, draw),
        others=[{}, *other_changes(declared, base, draw)],
    )


def base_of(draw: random.Random) -> Changes:
    """A valid config."""
    decay = draw.randrange(40, 120)
    micro, accum, world = draw.sample(range(2, 9), 3)
    return {
        "data": "toy",
        "dataset_size": draw.randrange(200, 900),
        "seed": draw.randrange(20, 90),
        "micro_batch_size": micro,
        "grad_accum_steps": accum,
        "pinned_global_batch_size": None,
        "world_size": world,
        "max_epochs": draw.randrange(2, 20),
        "learning_rate": draw.randrange(1, 90) / 128,
        "warmup_steps": draw.randrange(3, decay - 20),
        "decay_steps": decay,
        "dropout": draw.randrange(1, 60) / 64,
        "amp": draw.choice(("no", "bf16", "fp16")),
        "run_dir": Path(f"run-{draw.randrange(100)}"),
        "num_workers": draw.randrange(0, 5),
        "log_every": draw.randrange(21, 90),
    }


def good_changes(
    declared: Mapping[str, Rule], base: Changes, draw: random.Random
) -> list[Changes]:
    """Each bound itself, each choice, None where it is allowed, an int for each float."""
    good: list[Changes] = []
    for name, rule in declared.items():
        values: list[Any] = [*rule.choices, *([None] if rule.is_optional else [])]
        values += [bound for bound in (rule.low, rule.high) if bound is not None]
        if rule.type == "int" and rule.high is None:
            values.append(draw.randrange(1000, 10**6))
        if rule.type == "float":
            least = math.ceil(rule.low or 0)
            values.append(draw.randrange(least, least + 1 if rule.high else least + 5))
        for value in values:
            # A warmup has to end before the decay does.
            both: dict[str, dict[str, Any]] = {
                "warmup_steps": {"decay_steps": None},
                "decay_steps": {"warmup_steps": 0},
            }
            good.append({name: value, **both.get(name, {})})
    path = f"/data/{draw.randrange(100)}:a.bin"
    good += [{"data": "digits"}, {"data": f"tokens:{path}"}, {"data": f"tokens:x{path}"}]
    return [*good, {"warmup_steps": base["decay_steps"] - 1}]


def bad_changes(
    declared: Mapping[str, Rule], base: Changes, draw: random.Random
) -> list[Changes]:
    """Out of bounds, of a wrong type, no choice; for every setting."""
    bad: list[Changes] = []
    for name, rule in declared.items():
        values: list[Any] = []
        if rule.type in ("int", "float"):
            values += [True, False, str(draw.randrange(2, 9)), [draw.randrange(2, 9)]]
            away = draw.randrange(1, 50) if rule.type == "int" else draw.randrange(1, 80) / 16
            values += [] if rule.low is None else [rule.low - away, -away - 1]
            values += [rule.low / 2] if rule.low and rule.type == "float" else []
            values += [] if rule.high is None else [rule.high + away]
        if rule.type == "int":
            values += [draw.randrange(2, 9) + 0.5, float(draw.randrange(2, 9)), NAN, INF]
            values += [rule.low - 1] if rule.low is not None else []
        if rule.type == "float":
            values += [NAN, INF, -INF]
            values += [rule.high + 0.005] if rule.high else []
        if rule.type == "bool":
            values += [0, 1, "yes"]
        if rule.type == "str":
            values += [draw.randrange(9), Path("no"), True]
            values += [*(choice.upper() for choice in rule.choices), "fp8"]
        if rule.type == "Path":
            values += [f"run-{draw.randrange(9)}", draw.randrange(9)]
        if not rule.is_optional:
            values.append(None)
        bad += [{name: value} for value in values]
    where = f"/data/{draw.randrange(99)}.bin"
    kinds = ["imagenet", "tokens:", "tokens", f"digits:{where}", f"token:{where}", where]
    bad += [{"data": kind} for kind in kinds]
    decay = base["decay_steps"]
    late = [decay, decay + draw.randrange(1, 9), decay + draw.randrange(100, 999)]
    bad += [{"warmup_steps": steps, "decay_steps": decay} for steps in late]
    return [*bad, {"warmup_steps": 1, "decay_steps": 1}]


def alike_pairs(
    declared: Mapping[str, Rule], draw: random.Random
) -> list[tuple[str, Changes, Changes]]:
    """One file at two places, and each number as an int and as a float."""
    name = f"{draw.randrange(99)}.bin"
    one, other = {"data": f"tokens:/a/{name}"}, {"data": f"tokens:/b:c/{name}"}
    pairs: list[tuple[str, Changes, Changes]] = [("place", one, other)]
    for setting, rule in declared.items():
        if rule.type == "float" and rule.kind in ("identity", "training"):
            high = 1 if rule.high == 1 else 0 if rule.high else draw.randrange(1, 9)
            pairs.append(("spelling", {setting: high}, {setting: float(high)}))
    return pairs


def other_changes(
    declared: Mapping[str, Rule], base: Changes, draw: random.Random
) -> list[Changes]:
    """Each setting that counts with another value; values that two settings swap or share."""
    others: list[Changes] = [{"data": "digits"}, {"data": f"tokens:x{draw.randrange(9)}"}]
    for name, rule in declared.items():
        if rule.kind in ("identity", "training") and name != "data":
            now = base.get(name, rule.default)
            if rule.choices:
                others += [{name: choice} for choice in rule.choices if choice != now]
            elif rule.type == "int":
                others.append({name: (now or 50) + 1})
            else:
                others.append({name: (now or 0.25) * 0.75 or 0.25})
            others += [{name: None}] if rule.is_optional and now is not None else []
    cut = draw.choice(("micro_batch_size", "grad_accum_steps", "world_size"))
    others.append({cut: base[cut] + 1})
    others.append({"pinned_global_batch_size": 100_000 + draw.randrange(99)})
    # A real difference, however small: lost where numbers are rounded, or become floats.
    others += [{"learning_rate": base["learning_rate"] * (1 + e)} for e in (1e-8, -1e-8)]
    huge = 2**53 + 2 * draw.randrange(1, 99)
    others += [{"seed": huge + more} for more in range(3)]
    # Swapped, moved from one to the other, and equal once nothing separates their digits.
    for one, two, also in (
        ("dataset_size", "seed", {}),
        ("dataset_size", "decay_steps", {"warmup_steps": 0}),
        ("max_epochs", "warmup_steps", {"decay_steps": None}),
    ):
        a, b = draw.sample(range(3, 10), 2)
        digits = draw.randrange(21, 30)
        pairs = [(a, b), (b, a), (a + b - 1, 1)]
        pairs += [(digits, 1), (digits // 10, digits % 10 * 10 + 1)]
        others += [{one: first, two: last, **also} for first, last in pairs]
    return others


def other_value(rule: Rule) -> Any:
    """A valid value that is not the default."""
    if rule.choices:
        return rule.choices[-1]
    return rule.default + 1 if rule.type in ("int", "float") else not rule.default

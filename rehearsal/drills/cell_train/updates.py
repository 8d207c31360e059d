"""What one step did to the weights, judged by the gradient that it followed. Plain data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks
from rehearsal.kit.judge.clipping import Vector, away, clipped, norm, scaled, weighted
from .candidates import candidate_gradients
from .findings import FOUND
from .plan import JobPlan, Step

CLOSE = {"no": 1e-3, "bf16": 0.05}  # of the largest element
PARALLEL = 1e-5  # of two gradients: one minus the cosine of their angle


def update_findings(
    plan: JobPlan, reports: Sequence[RankReport], number: int
) -> Iterator[Finding]:
    """Findings about step ``number`` of the plan, from 0."""
    step = plan.steps[number]
    answers = [report.answer["steps"][number] for report in reports]
    yield from before_the_gradient(plan, number, answers)
    if step.is_skipped:
        return
    tensors = reports[0].answer["tensors"]
    names = [name for name, size, _ in tensors for _ in range(size)]
    decays = [plan.decays[group] for _, size, group in tensors for _ in range(size)]
    sums = [[row[1:] for row in answer["truth"]] for answer in answers]
    total = step.num_samples
    rows = [row for own in sums for row in own]
    mean = weighted(rows, [1 / total] * len(rows))
    yield from unequal_ranks(plan, number, answers, decays, mean)
    before, after = answers[0]["before"], answers[0]["after"]
    where = place_of(step, number, answers[0]["bound"])
    was_skipped = all(answer["returned"] == 1.0 for answer in answers)
    if before == after and was_skipped and math.isnan(step.leftover or 0.0):
        where += ", before which the gradients held NaN,"
        yield FOUND(
            "stale-gradients", f"{where} changed no weight; its own gradients are finite"
        )
        return
    if before == after:
        look = "at what decides whether the optimizer steps"
        if step.kind == "overflow":
            where += ", in which a loss is infinite,"
            look += ": a loss can be infinite while every gradient is finite"
        found = f"{where} changed no weight, and every gradient was finite"
        yield FOUND("no-update", found, look)
        return
    followed = gradient_of(before, after, step.lr, decays)
    most = answers[0]["bound"] or 1e30
    right, place = away(followed, clipped(mean, most))
    close = CLOSE[step.amp]
    if right < close:
        return
    ends = [0, *itertools.accumulate(size for _, size, _ in tensors)]
    parts = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
    places: dict[str, list[list[slice]]] = {"tensor": [[part] for part in parts]}
    places["group"] = [
        [part for part, (_, _, own) in zip(parts, tensors, strict=True) if own == group]
        for group in range(len(plan.decays))
    ]
    for code, words, vector in candidate_gradients(sums, step.sizes, most, places):
        if code and away(followed, vector)[0] < close:
            yield FOUND(code, f"{where} followed {words}")
            return
    if norm(followed) < 1e-3 * norm(clipped(mean, most)):
        yield FOUND(
            "wrong-gradient",
            f"{where} followed a gradient of zero; only weight decay changed the weights",
            "at what clears or scales the gradients before the optimizer steps",
        )
        return
    # The rate that the optimizer had before the call.
    old = plan.steps[number - 1].lr if number else plan.first_lr
    late = gradient_of(before, after, old, decays)
    if away(late, clipped(mean, most))[0] < close:
        yield FOUND(
            "learning-rate",
            f"step {number + 1} was called with lr={step.lr}, and the weights changed as with "
            f"{old}",
            "at whether you set it before or after the optimizer steps",
        )
        return
    if step.leftover is not None:
        stale = [x + step.leftover for x in mean]
        if min(away(followed, v)[0] for v in (stale, clipped(stale, most))) < close:
            yield FOUND(
                "stale-gradients",
                f"{where} followed the mean gradient plus {step.leftover} in every element, "
                "which is what the gradients held before the call",
            )
            return
    yield unexplained(plan, step, where, followed, mean, most, names[place], right)


def unexplained(
    plan: JobPlan,
    step: Step,
    where: str,
    followed: Vector,
    mean: Vector,
    most: float,
    worst: str,
    error: float,
) -> Finding:
    """A finding for a gradient that no known mistake explains: by its direction and length."""
    length, wanted, true = norm(followed), norm(clipped(mean, most)), norm(mean)
    same = cosine(followed, mean)
    is_clipped = step.bound is not None and true > most
    if 1 - abs(same) < (1e-3 if step.amp == "bf16" else PARALLEL):
        way = "the mean gradient's direction" if same > 0 else "minus the mean gradient"
        found = f"{where} followed {way} with a norm of {length:.4g}; it should be {wanted:.4g}"
        if is_clipped:
            found += f" (the mean gradient's is {true:.4g}, which is above the bound)"
            return FOUND("clipping", found, "at the norm that you clip by, and at when")
        return FOUND("scale" if same > 0 else "wrong-gradient", found)
    found = (
        f"{where} did not follow the mean gradient: the largest error is in {worst}, "
        f"{error:.3g} times the gradient's largest element"
    )
    if is_clipped:
        found += "; step 1, without a bound, was right"
        return FOUND("clipping", found)
    return FOUND("wrong-gradient", found)


def before_the_gradient(
    plan: JobPlan, number: int, answers: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """What needs no gradient: rates, number of steps, weights that must be finite or equal."""
    step = plan.steps[number]
    for rank, answer in enumerate(answers):
        if any(not math.isclose(own, step.lr, rel_tol=1e-6) for own in answer["lrs"]):
            yield FOUND(
                "learning-rate",
                f"step {number + 1} on rank {rank} was called with lr={step.lr}, and the "
                f"groups have {answer['lrs']}",
            )
        if answer["optimizer_steps"] > 1:
            steps = counted(answer["optimizer_steps"], "optimizer step")
            yield FOUND("many-steps", f"step {number + 1}: one call took {steps}")
    bad = [r for r, a in enumerate(answers) if not all(map(math.isfinite, a["after"]))]
    ranks = f"the weights of {named_ranks(bad or [0])} of {len(answers)} became NaN or infinite"
    kind = {"nan": "NaN", "infinite": "infinite"}.get(step.kind)
    if bad and kind:
        look = "at what you base the decision on, and whether every rank knows it"
        if all(answer["returned"] == 1.0 for answer in answers):
            look = "at how and when the flag reaches the update: train_step returned 1.0 on "
            look += "every rank"
        found = (
            f"in step {number + 1} rank {step.special[0]}'s gradient was {kind}, and {ranks}"
        )
        yield FOUND("nonfinite-applied", found, look)
    elif bad and step.leftover is not None and math.isnan(step.leftover):
        found = f"in step {number + 1}, before which the gradients held NaN, {ranks}"
        yield FOUND("stale-gradients", found)
    elif bad and step.kind == "overflow":
        found = (
            f"in step {number + 1} a loss was infinite, every gradient was finite, and {ranks}"
        )
        yield FOUND("wrong-gradient", found, "at what you multiply the loss or gradients by")
    elif bad:
        look = "at where NaN or infinity comes from: the samples of this step are finite"
        yield FOUND("nonfinite-applied", f"in step {number + 1} {ranks}", look)
    moved = [r for r, a in enumerate(answers) if a["after"] != a["before"]]
    if step.is_skipped and moved and not bad:
        yield FOUND(
            "moved-without-gradient",
            f"in step {number + 1} rank {step.special[0]}'s gradient was {kind}, and the "
            f"weights of {named_ranks(moved)} of {len(answers)} changed",
        )


def unequal_ranks(
    plan: JobPlan,
    number: int,
    answers: Sequence[Mapping[str, Any]],
    decays: Vector,
    mean: Vector,
) -> Iterator[Finding]:
    """A finding if the ranks leave the step with different weights."""
    step = plan.steps[number]
    other = next((r for r, a in enumerate(answers) if a["after"] != answers[0]["after"]), None)
    if other is None:
        return
    ends = f"ranks 0 and {other} have different weights after step {number + 1}"
    stayed = [rank for rank, a in enumerate(answers) if a["after"] == a["before"]]
    if stayed:
        found = (
            f"{ends}: {named_ranks(stayed)} skipped the update, and every gradient was finite"
        )
        yield FOUND(
            "no-update", found, "at what a rank decides by, and whether all ranks know it"
        )
        return
    followed = [gradient_of(a["before"], a["after"], step.lr, decays) for a in answers]
    if step.bound is not None and all(cosine(own, mean) > 1 - PARALLEL for own in followed):
        norms = " and ".join(f"{norm(followed[rank]):.4g}" for rank in (0, other))
        found = f"{ends}: both followed the mean gradient's direction, with norms of {norms}"
        yield FOUND("clipping", found)
        return
    yield FOUND("ranks-differ", ends)


def cosine(ours: Vector, theirs: Vector) -> float:
    """Of the angle between two gradients; 0 if one of them is zero."""
    product = norm(ours) * norm(theirs)
    return sum(a * b for a, b in zip(ours, theirs, strict=True)) / (product or math.inf)


def gradient_of(before: Vector, after: Vector, lr: float, decays: Vector) -> list[float]:
    """The gradient that SGD with this rate followed, without the weight decay."""
    rows = zip(before, after, decays, strict=True)
    return [(old - new) / lr - decay * old for old, new, decay in rows]


def place_of(step: Step, number: int, bound: float | None) -> str:
    """ "on 3 ranks, step 2 (9 samples, max_grad_norm=0.31)"."""
    size = counted(step.num_samples, "sample")
    ranks = counted(len(step.sizes), "rank")
    return f"on {ranks}, step {number + 1} ({size}, max_grad_norm={bound})"


def mean_norm(step: Step, reports: Sequence[RankReport], number: int) -> float:
    """The norm of the mean gradient, before clipping."""
    rows = [row[1:] for r in reports for row in r.answer["steps"][number]["truth"]]
    return norm(scaled(weighted(rows, [1.0] * len(rows)), 1 / step.num_samples))

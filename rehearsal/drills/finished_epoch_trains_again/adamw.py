"""Does each step take the update of AdamW? Written out on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.steps import TOLERANCE, states_of
from rehearsal.kit.judge.weights import numbers

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01  # torch's defaults
ROUNDING = 2e-6  # of a gradient in float32


def adamw_findings(reports: Sequence[RankReport], lr: float) -> Iterator[Finding]:
    """A finding at the first step whose update isn't AdamW's on the mean over its samples."""
    gradient, sizes = odd_net_gradient(reports), [*map(len, samples_by_step(reports))]
    means: dict[str, list[float]] = {}
    squares: dict[str, list[float]] = {}
    for step, (before, after) in enumerate(pairwise(states_of(reports)), 1):
        worst, where = 0.0, ""
        grads = gradient(step - 1, before)
        for name in before:
            old, new = numbers(before[name]), numbers(after[name])
            grad = grads.get(name, ())
            mean = means.setdefault(name, [0.0] * len(grad))
            square = squares.setdefault(name, [0.0] * len(grad))
            mean[:] = [
                BETAS[0] * m + (1 - BETAS[0]) * g for m, g in zip(mean, grad, strict=True)
            ]
            square[:] = [
                BETAS[1] * s + (1 - BETAS[1]) * g * g for s, g in zip(square, grad, strict=True)
            ]
            if not grad and old != new:
                worst, where = math.inf, name
            for weight, is_, m, s in zip(old, new, mean, square, strict=False):
                scale = math.sqrt(s / (1 - BETAS[1] ** step)) + EPS
                should = weight * (1 - lr * DECAY) - lr * m / (1 - BETAS[0] ** step) / scale
                # Where a gradient is close to zero, its rounding decides the update.
                off = abs(is_ - should) - lr * ROUNDING / scale
                if not off <= max(worst, TOLERANCE):
                    worst, where = off, name
        if where:
            found = (
                f"without a restart, the update of step {step} is off by up to {worst:.2g}, "
            )
            found += f"in {where}, from AdamW's with lr={lr:.4g} on the mean over the step's "
            found += counted(sizes[step - 1], "sample")
            if worst == math.inf:
                found = f"without a restart, step {step} changed {where}, which has no gradient"
            rule = "a step follows the mean loss of its samples, on all ranks"
            look = "at what a step adds up, divides by and clears, and at how often it is taken"
            yield Finding("different-update", found, rule, look)
            return

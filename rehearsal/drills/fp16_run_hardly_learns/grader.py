"""Overflows on rank 0, on another rank, on all: every rank skips, clips and scales the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import watch_samples, weights_of

from .half import HalfNet, expected, micro_batches_of
from .plan import Run, drawn

FINDINGS = FindingTable(
    {
        "wrong-steps-skipped": (
            "a rank doesn't skip the steps in which a gradient overflows",
            "if a gradient overflows on any rank, every rank skips that step; no other step is "
            "skipped",
            "at who learns of an overflow, when, and what the decision to skip is based on",
        ),
        "wrong-scale": (
            "a step has another scale than it should",
            "the scale halves after a skipped step and doubles after growth_interval good ones",
            "at what changes the scale, and how often per step",
        ),
        "wrong-loss": (
            "the log doesn't have the mean loss of each step",
            "the loss of a step is the mean over its micro-batches on all ranks, unscaled",
            "at what is summed, and at what it's divided by",
        ),
        "wrong-norm": (
            "the log doesn't have the norm of each step's gradient",
            "grad_norm is the norm of the step's gradient: over all ranks, unscaled, unclipped",
            "at the state of the gradient when its norm is taken",
        ),
        "different-update": (
            "the ranks agree, but their updates are not those that the brief describes",
            "a step follows the mean loss over its micro-batches, clipped to max_norm",
            "at everything that happens to a gradient on its way to the optimizer, in order",
        ),
        "wrong-log": (
            "the log doesn't have the entries that the brief describes",
            "train returns one entry per step; rank 0, and no other, prints the skipped ones",
            "at what is returned and printed, and on which ranks",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    "trained-twice": "a sample is trained more than once",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights",
}
KEYS = {"loss", "grad_norm", "scale", "skipped"}
LINE = re.compile(r"^step (\d+): overflow at scale (\d\S*), skipped$", re.MULTILINE)


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return weights and log, and those of one process."""
    context.init_group()
    reference = expected(run)
    model = HalfNet(seed=context.rank)
    began = weights_of(HalfNet(seed=0))
    watch_samples(context, model)
    returned = learner.train(
        model,
        micro_batches_of(run, context.rank),
        lr=run.lr,
        max_norm=run.max_norm,
        grad_accum_steps=run.grad_accum_steps,
        init_scale=run.init_scale,
        growth_interval=run.growth_interval,
    )
    return {
        "weights": weights_of(model),
        "began": began,
        "returned": returned,
        "expected": reference,
    }


def judge(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """The findings of one job; the first part that has any explains the rest."""
    look = "at which micro-batches go through the model, and how often"
    apart = [*ranks_differ(weights_of_ranks(reports), "at what a rank bases its decisions on")]
    yield from first_of(
        coverage_findings(reports, run.num_samples, 1, look),
        form_findings(run, reports),
        # Before the skipped steps: a wrong loss may make a gradient overflow that shouldn't.
        () if apart else log_findings(reports, "loss", "wrong-loss", 1e-3, most_steps=1),
        skip_findings(run, reports),
        log_findings(reports, "scale", "wrong-scale", 0.0),
        apart,
        # Later losses and norms follow from the updates.
        log_findings(reports, "grad_norm", "wrong-norm", 5e-3, most_steps=1),
        update_findings(reports),
        log_findings(reports, "loss", "wrong-loss", 1e-3),
        log_findings(reports, "grad_norm", "wrong-norm", 5e-3),
        print_findings(run, reports),
    )


def form_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank's log isn't a list with one entry per step."""
    for report in reports:
        log = report.answer["returned"]
        who = f"rank {report.rank} of {len(reports)} returned"
        if not isinstance(log, list) or len(log) != run.num_steps:
            size = f"{len(log)} entries" if isinstance(log, list) else str(log)[:100]
            yield FINDINGS("wrong-log", f"{who} {size}; the run has {run.num_steps} steps")
            return
        for step, entry in enumerate(log, 1):
            if not isinstance(entry, dict) or entry.keys() != KEYS:
                found = f"{who} {str(entry)[:200]} for step {step}; its keys should be "
                yield FINDINGS("wrong-log", found + ", ".join(sorted(KEYS)))
                return


def skip_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank's log has other skipped steps than those that overflow.

    None if a wrong scale came first: it may be why a gradient overflowed, or didn't.
    """
    wanted, scales = sorted(run.overflows), run.scales()
    for report in reports:
        skipped = [
            s for s, entry in enumerate(report.answer["returned"], 1) if entry["skipped"]
        ]
        log = zip(report.answer["returned"], scales, strict=True)
        rescaled = [s for s, (entry, scale) in enumerate(log, 1) if entry["scale"] != scale]
        first_wrong = min({*skipped} ^ {*wanted}, default=run.num_steps)
        if skipped != wanted and min(rescaled, default=run.num_steps + 1) > first_wrong:
            where = ", ".join(
                f"step {step} (rank{'s' * (len(run.overflows[step][0]) > 1)} "
                f"{', '.join(map(str, run.overflows[step][0]))})"
                for step in wanted
            )
            found = f"rank {report.rank} of {len(reports)} skipped steps {skipped}; a gradient "
            found += f"overflows in {where}; in step {run.cancels}, infinities add up to NaN"
            if run.large in skipped:
                found += f"; in step {run.large}, every rank's gradient fits into half "
                found += "precision, but not their sum"
            yield FINDINGS("wrong-steps-skipped", found)
            return


def log_findings(
    reports: Sequence[RankReport], key: str, code: str, tolerance: float, most_steps: int = 99
) -> Iterator[Finding]:
    """A finding if an entry of a log differs from one process's; relative to its size.

    Args:
        most_steps: looks at so many of the first steps.
    """
    wanted = reports[0].answer["expected"]["log"]
    for report in reports:
        log = report.answer["returned"]
        for step, (ours, theirs) in enumerate(
            list(zip(log, wanted, strict=True))[:most_steps], 1
        ):
            if not is_near(ours[key], theirs[key], tolerance):
                found = f"in step {step} on rank {report.rank} of {len(reports)}, the log's "
                found += f"{key} is {ours[key]}, not {theirs[key]}"
                yield FINDINGS(code, found)
                return


def is_near(ours: object, theirs: float | None, tolerance: float) -> bool:
    """Whether a logged number is right; None in a skipped step."""
    if theirs is None or not isinstance(ours, int | float):
        return ours is theirs
    return math.isclose(ours, theirs, rel_tol=tolerance)


def update_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the weights differ from one process's by more than half precision does."""
    answer = reports[0].answer
    theirs = answer["expected"]["weights"]
    difference, name = largest_difference(answer["weights"], theirs)
    moved, _ = largest_difference(answer["began"], theirs)
    if not difference <= 2e-3 * moved:
        found = f"on {counted(len(reports), 'rank')}, the weights differ by up to "
        found += (
            f"{difference:.2g}, in {name}, from those of one process that starts with rank "
        )
        found += f"0's weights and moves by up to {moved:.2g}"
        yield FINDINGS("different-update", found)


def print_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if rank 0 doesn't print the skipped steps, or another rank prints any."""
    scales = run.scales()
    wanted = [(step, scales[step - 1]) for step in sorted(run.overflows)]
    for report in reports:
        printed = [(int(step), scale) for step, scale in LINE.findall(report.output)]
        lines = wanted if report.rank == 0 else []
        if [step for step, _ in printed] != [step for step, _ in lines] or not all(
            is_number(shown, scale)
            for (_, shown), (_, scale) in zip(printed, lines, strict=True)
        ):
            found = f"rank {report.rank} printed (step, scale) {printed}; rank 0 should print "
            found += f"{wanted}, and the others nothing"
            yield FINDINGS("wrong-log", found)
            return


def is_number(text: str, value: float) -> bool:
    """Whether a printed number is ``value``, in whatever format."""
    try:
        return math.isclose(float(text), value, rel_tol=1e-4)
    except ValueError:
        return False


def scenarios(seed: int) -> list[Scenario]:
    """Two ranks that clip most steps; three that clip some, and don't accumulate."""
    runs = [drawn(seed, 2, (0.3, 1.5), (2, 3)), drawn(seed, 3, (6.0, 8.0), (1,))]
    return [
        Scenario(
            name=counted(run.world_size, "rank"),
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=4,
        )
        for run in runs
    ]

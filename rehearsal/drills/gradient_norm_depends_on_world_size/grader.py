"""Which gradient did each step follow, and which norm was logged, on 1, 2 and 3 ranks?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.clipping import Vector, away, norm, ways_to_clip
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.observe.samples import OddNet, watch_samples
from .watch import StepWatch, outlying_samples
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    "collective-on-some-ranks": "the run stands still: not all ranks issued a collective",
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "other-steps": "not one optimizer step per global batch",
    "micro-batch-too-large": "a pass has more samples than a micro-batch may have",
    "ranks-differ": "the ranks take different steps",
    "clipped-per-micro-batch": "a gradient is shortened before all micro-batches are in it",
    "clipped-per-rank": "a gradient is shortened before all ranks are in it",
    "norm-of-norms": "the right gradient is shortened by a norm that is not its own",
    "clipped-in-parts": "parameters or elements are shortened each by itself",
    "clipped-up": "a gradient within the bound is made longer",
    "not-clipped": "a gradient beyond the bound keeps its length",
    "another-gradient": "a step follows none of these",
    "logs-another-norm": "what train returns is not the norm of the steps' gradients",
}
# Two steps of 9 samples, each with an outlier, and one of 2: of three ranks one gets none.
NUM_SAMPLES, GLOBAL_BATCH_SIZE, MICRO_BATCH_SIZE, EPOCHS = 20, 9, 2, 2
STEPS, MAX_NORM, LR = 6, 4.0, 0.05
SIZES = [9, 9, 2]
# Where the parameters that are used lie in a gradient: weight and bias of two layers.
TENSORS = [[slice(0, 20)], [slice(20, 24)], [slice(24, 32)], [slice(32, 34)]]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train on unlike weights per rank; tell what each step was made of, and the log."""
    context.init_group()
    model, (inputs, targets) = OddNet(seed=context.rank), outlying_samples(NUM_SAMPLES)
    watch_samples(context, model)
    watch = StepWatch(model)
    returned = learner.train(
        model,
        inputs.clone(),
        targets.clone(),
        epochs=EPOCHS,
        lr=LR,
        max_norm=MAX_NORM,
        global_batch_size=GLOBAL_BATCH_SIZE,
        micro_batch_size=MICRO_BATCH_SIZE,
    )
    return {"returned": returned, "steps": watch.facts(inputs, targets, LR)}


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The findings of one job: those that explain the others."""
    if any(not report.has_answer for report in reports):
        return mismatched_collectives(reports)
    look = "at the samples that a rank takes of a step"
    parts = [coverage_findings(reports, NUM_SAMPLES, EPOCHS, look), shape_findings(reports)]
    steps = (step_findings(reports, step) for step in range(STEPS))
    return first_of(*parts, *steps, log_findings(reports))


def shape_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Steps and micro-batches as they were asked for."""
    for report in reports:
        steps = report.answer["steps"]
        if len(steps) != STEPS:
            found = f"rank {report.rank} of {len(reports)} takes {len(steps)} optimizer steps "
            found += f"in {EPOCHS} epochs of {STEPS // EPOCHS} global batches"
            rule = "accumulated micro-batches of all ranks are one step"
            yield Finding("other-steps", found, rule, "at when the optimizer steps")
            return
        most = max(len(ids) for step in steps for ids in step["micro_batches"] or [[]])
        if most > MICRO_BATCH_SIZE:
            found = (
                f"rank {report.rank} of {len(reports)} ran {most} samples in one pass, with "
            )
            found += f"micro_batch_size={MICRO_BATCH_SIZE}"
            rule = "a micro-batch is what fits into memory"
            yield Finding("micro-batch-too-large", found, rule, "at what goes into the model")
            return


def step_findings(reports: Sequence[RankReport], step: int) -> Iterator[Finding]:
    """What the step followed, on all ranks."""
    told = [report.answer["steps"][step] for report in reports]
    where = f"step {step + 1}, of {SIZES[step % 3]} samples on {len(reports)} rank(s), "
    followed: Vector = told[0]["followed"]
    for rank, own in enumerate(told):
        if not away(own["followed"], followed)[0] < 1e-4:
            found = f"{where}moved ranks 0 and {rank} unlike: by gradients of norm "
            found += f"{norm(followed):.3g} and {norm(own['followed']):.3g}"
            rule = "ranks that start alike and follow the same gradients stay alike"
            yield Finding("ranks-differ", found, rule, "at what each rank knows by itself")
            return
    sums = [own["sums"] for own in told]
    rule = "a step follows the mean gradient of its samples, shortened as a whole to max_norm "
    rule += "if it is longer; how the samples were dealt changes nothing"
    look = "at the moment at which the gradient is shortened: what is in it by then?"
    for code, words, vector in ways_to_clip(
        sums, SIZES[step % 3], MAX_NORM, {"tensor": TENSORS}
    ):
        if away(followed, vector)[0] < 1e-3:
            if code:
                found = f"{where}followed {words}; norm {norm(vector):.3g}, bound {MAX_NORM:g}"
                yield Finding(code, found, rule, look)
            return
    found = f"{where}followed a gradient of norm {norm(followed):.3g} that is not the mean of "
    found += "its samples, however shortened"
    yield Finding("another-gradient", found, rule, "at every factor of a loss and of the bound")


def log_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """The log, beside the norms that the gradients had."""
    right = []
    for step in range(STEPS):
        vectors = [v for report in reports for v in report.answer["steps"][step]["sums"]]
        right.append(norm([sum(x) / SIZES[step % 3] for x in zip(*vectors, strict=True)]))
    for report in reports:
        try:
            log = [float(value) for value in report.answer["returned"]]
        except (TypeError, ValueError):
            log = []
        pairs = list(zip(log, right, strict=False))
        wrong = [n for n, (a, b) in enumerate(pairs) if not math.isclose(a, b, rel_tol=1e-3)]
        if len(log) != STEPS or wrong:
            found = (
                f"rank {report.rank} of {len(reports)} returned {len(log)} norms for {STEPS} "
            )
            found += "steps"
            if wrong:
                found += (
                    f"; for step {wrong[0] + 1} {log[wrong[0]]:.4g}, where the mean gradient "
                )
                found += f"had {right[wrong[0]]:.4g}"
            rule = "the log tells the length of the step's gradient, before it is shortened"
            yield Finding("logs-another-norm", found, rule, "at which gradient is measured")
            return


SCENARIOS = [
    Scenario(
        name=name, body=body, judge=judge, world_size=size, deadline_s=5, judges_failures=True
    )
    for size, name in ((3, "three ranks"), (2, "two ranks"), (1, "one rank"))
]

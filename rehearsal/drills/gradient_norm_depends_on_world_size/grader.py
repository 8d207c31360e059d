"""Which gradient did each step follow, and which norm was returned, on 1, 2 and 3 ranks?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.clipping import Vector, away, norm, ways_to_clip
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.weights import STAY_EQUAL, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of

from .plan import EPOCHS, Run, drawn
from .watch import StepWatch, outlying_samples
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted, shortened

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "wrong-steps": "a global batch is not one optimizer step",
    "micro-batch-too-large": "a forward pass takes more than micro_batch_size samples",
    "ranks-differ": "the ranks start with different weights or take different steps",
    "clipped-per-micro-batch": "a gradient is clipped before all micro-batches are in it",
    "clipped-per-rank": "a gradient is clipped before all ranks are in it",
    "norm-of-norms": "the right gradient is clipped by a norm that is not its own",
    "clipped-in-parts": "each parameter or element is clipped by itself",
    "clipped-up": "a gradient within the bound is scaled up",
    "not-clipped": "a gradient beyond the bound is not clipped",
    "wrong-gradient": "a step follows a gradient that none of these explains",
    "logs-the-wrong-norm": "train does not return the norms of the steps' gradients",
}
# Where to look, by code.
WHEN = "at the moment when the gradient is clipped: what has been added to it by then?"
LOOKS = {
    "clipped-per-micro-batch": WHEN,
    "clipped-per-rank": WHEN,
    "norm-of-norms": "at the norm that decides how to clip: what is it the norm of?",
    "clipped-in-parts": "at what is measured and clipped at once: how much of the gradient?",
    "clipped-up": "at what happens to a gradient within the bound, and at every earlier factor",
    "not-clipped": "at what bounds the gradient, and at when that happens in a step",
}
# Where each used parameter lies in the gradient: weight and bias of two layers.
TENSORS = [[slice(0, 20)], [slice(20, 24)], [slice(24, 32)], [slice(32, 34)]]


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train from different weights per rank; return each step's facts and the norms."""
    context.init_group()
    model, (inputs, targets) = OddNet(seed=run.model_seed + context.rank), outlying_samples(run)
    watch_samples(context, model)
    watch = StepWatch(model)
    returned = learner.train(
        model,
        inputs.clone(),
        targets.clone(),
        epochs=EPOCHS,
        lr=run.lr,
        max_norm=run.max_norm,
        global_batch_size=run.global_batch_size,
        micro_batch_size=run.micro_batch_size,
    )
    weights = weights_of(model)
    return {
        "returned": returned,
        "is_list": isinstance(returned, list) and all(isinstance(x, float) for x in returned),
        "steps": watch.facts(inputs, targets, run.lr),
        "off": watch.off_rank_0s(OddNet(seed=run.model_seed)),
        "weights": weights,
    }


def judge(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first findings of one job; they explain the later ones."""
    if any(not report.has_answer for report in reports):
        return mismatched_collectives(reports)
    look = "at each loop around the model, and at which of a step's samples each rank takes"
    return first_of(
        coverage_findings(reports, run.num_samples, EPOCHS, look),
        shape_findings(run, reports),
        start_findings(reports),
        *(step_findings(run, reports, step) for step in range(run.steps)),
        ranks_differ(weights_of_ranks(reports)),
        log_findings(run, reports),
    )


def shape_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Whether steps and micro-batches have the right sizes."""
    for report in reports:
        steps = report.answer["steps"]
        if len(steps) != run.steps:
            found = f"rank {report.rank} of {len(reports)} took "
            found += f"{counted(len(steps), 'optimizer step')} in {EPOCHS} epochs of "
            found += f"{len(run.sizes)} global batches"
            rule = "all micro-batches of a global batch, on all ranks, are one optimizer step"
            yield Finding("wrong-steps", found, rule, "at when the optimizer steps")
            return
        most = max(len(ids) for step in steps for ids in step["micro_batches"] or [[]])
        if most > run.micro_batch_size:
            found = f"with micro_batch_size={run.micro_batch_size}, rank {report.rank} of "
            found += f"{len(reports)} ran {most} samples in one forward pass"
            rule = "a micro-batch is what fits in memory"
            yield Finding("micro-batch-too-large", found, rule, "at what goes into the model")
            return
    for number in range(run.steps):
        by_rank = [report.answer["steps"][number]["micro_batches"] for report in reports]
        size = sum(len(ids) for micro_batches in by_rank for ids in micro_batches)
        if size != run.size_of(number):
            found = f"on {counted(len(reports), 'rank')}, step {number + 1} trained "
            found += f"{counted(size, 'sample')}; its global batch has {run.size_of(number)}"
            rule = "all micro-batches of a global batch, on all ranks, are one optimizer step"
            yield Finding("wrong-steps", found, rule, "at which samples a step takes")
            return


def start_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Whether the first step begins with rank 0's weights on every rank."""
    for report in reports:
        if not (off := report.answer["off"]) <= 1e-6:
            found = f"on {counted(len(reports), 'rank')}, rank {report.rank} began step 1 with "
            found += f"weights that differ by up to {off:.2g} from those rank 0 was given"
            rule = "training starts from rank 0's weights, on every rank"
            look = "at what each rank does with its own weights before the first step"
            yield Finding("ranks-differ", found, rule, look)
            return


def step_findings(run: Run, reports: Sequence[RankReport], step: int) -> Iterator[Finding]:
    """Which gradient the step followed, on all ranks."""
    by_rank = [report.answer["steps"][step] for report in reports]
    where = (
        f"on {counted(len(reports), 'rank')}, step {step + 1} ({run.size_of(step)} samples) "
    )
    followed: Vector = by_rank[0]["followed"]
    for rank, own in enumerate(by_rank):
        if not away(own["followed"], followed)[0] < 1e-4:
            found = f"{where}moved ranks 0 and {rank} differently: by gradients of norm "
            found += f"{norm(followed):.3g} and {norm(own['followed']):.3g}, whose difference "
            apart = [a - b for a, b in zip(followed, own["followed"], strict=True)]
            found += f"has norm {norm(apart):.3g}"
            look = "at what each rank uses that the others do not have"
            yield Finding("ranks-differ", found, STAY_EQUAL, look)
            return
    sums = [own["sums"] for own in by_rank]
    rule = "a step follows the mean gradient of its samples, clipped as a whole to max_norm; "
    rule += "how the samples were split changes nothing"
    for code, words, vector in ways_to_clip(
        sums, run.size_of(step), run.max_norm, {"tensor": TENSORS}
    ):
        if away(followed, vector)[0] < 2e-4:
            if code:
                found = f"{where}followed {words}; the norm of the result is "
                found += f"{norm(vector):.3g}, and max_norm={run.max_norm:.4g}"
                yield Finding(code, found, rule, LOOKS[code])
            return
    found = f"{where}followed a gradient of norm {norm(followed):.3g} that is not the mean "
    found += "over its samples, clipped or not"
    look = "at every factor applied to the loss and to the gradient"
    if step:  # the first step followed the right one
        look = f"at what the gradient holds when step {step + 1} begins, and {look}"
    if not any(followed):
        found = f"{where}did not move the weights at all"
        look = "at how a gradient gets from the loss to the optimizer"
    yield Finding("wrong-gradient", found, rule, look)


def log_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """The returned norms, compared with those of the gradients."""
    right = []
    for step in range(run.steps):
        vectors = [v for report in reports for v in report.answer["steps"][step]["sums"]]
        right.append(norm([sum(x) / run.size_of(step) for x in zip(*vectors, strict=True)]))
    for report in reports:
        returned = report.answer["returned"]
        rule = "train returns the norm of each step's gradient before clipping"
        log = returned
        if not report.answer["is_list"]:
            found = f"rank {report.rank} of {len(reports)} returned "
            found += f"{shortened(repr(returned), 60)} instead of a list of {run.steps} floats"
            yield Finding("logs-the-wrong-norm", found, rule, "at what train returns")
            return
        pairs = list(zip(log, right, strict=False))
        wrong = [n for n, (a, b) in enumerate(pairs) if not math.isclose(a, b, rel_tol=1e-4)]
        if len(log) != run.steps or wrong:
            found = f"rank {report.rank} of {len(reports)} returned "
            found += f"{counted(len(log), 'norm')} for {run.steps} steps"
            if wrong:
                found += f"; step {wrong[0] + 1}'s is {log[wrong[0]]:.4g}, while the mean "
                found += f"gradient's norm was {right[wrong[0]]:.4g}"
            look = "at which gradient is measured, and at when its norm is added to the list"
            yield Finding("logs-the-wrong-norm", found, rule, look)
            return


def scenarios(seed: int) -> list[Scenario]:
    """Almost the same run on three ranks, two and one."""
    return [
        Scenario(
            name=name,
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=5,
            judges_failures=True,
        )
        for name, run in drawn(seed).items()
    ]

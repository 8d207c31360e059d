"""Two poisoned samples per epoch, one in the loss and one only in the gradient; and a kill."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import largest_difference, numbers, ranks_differ
from rehearsal.kit.judge.weights import weights_of_ranks
from rehearsal.kit.observe.restart import trains
from rehearsal.kit.observe.samples import before_forward, ids_of, weights_of
from .poison import NormNet, expected, not_finite_files, poisoned_samples
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, Judge, counted

CODES = {
    "weights-not-finite": "weights end as NaN or infinity",
    "saved-not-finite": "a checkpoint contains NaN or infinity",
    "ranks-differ": "the ranks end with different weights",
    "wrong-steps-skipped": "train does not return the steps that had to be skipped",
    "moved-without-a-gradient": "in a skipped step, momentum still moves the weights",
    "wrong-number-of-passes": "a step does not run exactly one forward pass",
    "partial-step": "a step that had to be skipped trains part of its samples or gradient",
    "not-the-same-run": "a good step or a restart leads to different weights than it should",
    "repeats-saved-steps": "a restart trains steps that should be in a checkpoint",
}
# Five steps an epoch. Sample 8 ruins the loss of steps 2 and 7, sample 16 the gradient of
# steps 4 and 9: on rank 1 of two, on ranks 0 and 1 of three.
NUM_SAMPLES, GLOBAL_BATCH_SIZE, EPOCHS, EVERY, LR = 23, 5, 2, 2, 0.01
SKIPPED = [2, 4, 7, 9]
RULE = "if the loss or gradient is NaN or infinite on any rank, every rank skips the step"


def net_of(context: RankContext) -> NormNet:
    """A rank's model, which records the weights with which its second step begins."""
    net, first = NormNet(seed=context.rank), list[list[int]]()

    def seen(batch: Tensor) -> None:
        samples = ids_of(batch)
        first.append(samples)
        if samples != first[0]:
            context.record("second_step", weights=weights_of(net))
            handle.remove()

    handle = before_forward(net, seen)
    return net


def train_in(run: str) -> Body:
    """A body that trains in the folder of ``run``, or resumes there."""
    train = trains(
        run,
        NUM_SAMPLES,
        model=net_of,
        data=lambda _, num_samples: poisoned_samples(num_samples),
        epochs=EPOCHS,
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_every=EVERY,
        lr=LR,
    )

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        found = not_finite_files(context.folder / run)
        answer = train(context, learner)
        run_of = (NUM_SAMPLES, GLOBAL_BATCH_SIZE, EPOCHS, LR)
        references = {"": expected(*run_of), "coasting": expected(*run_of, coasts=True)}
        references["step 1"] = expected(*run_of, steps=1)
        return {**answer, "references": references, "not_finite_files": found}

    return body


def judge(reports: Sequence[RankReport], start: int = 0) -> Iterator[Finding]:
    """The findings of a job that began after step ``start``; the first one counts."""
    where = f"on {counted(len(reports), 'rank')}"
    where += f", restarted after the save due at step {start}" * bool(start)
    for report in reports:
        weights, rank = report.answer["weights"], report.rank
        if names := report.answer["not_finite_files"]:
            found = f"{where}, the checkpoint {names[0]} contains NaN or infinity"
            rule = "a checkpoint is something that a run can resume from"
            look = "at what happens between the optimizer's step and the save"
            yield Finding("saved-not-finite", found, rule, look)
        for name, text in weights.items():
            if not all(map(math.isfinite, numbers(text))):
                found = f"{where}, rank {rank} ended with NaN or infinity in {name}"
                look = "at each bad step: what is not finite, and which ranks know about it?"
                yield Finding("weights-not-finite", found, RULE, look)
    left, wanted = EPOCHS * 5 - start, [step for step in SKIPPED if step > start]
    for report in reports:
        passes, returned = len(report.of("forward")), report.answer["returned"]
        if passes != left:
            found = f"{where}, rank {report.rank} ran {passes} forward "
            found += f"pass{'es' * (passes != 1)}; "
            found += f"{left} steps were left" if start else f"the run has {left} steps"
            code = "wrong-number-of-passes"
            rule = "each step, skipped or not, runs one forward pass"
            look = "at how often the loop runs, and at each call of the model in it"
            if start:
                code = "repeats-saved-steps" if passes > left else code
                rule = "a skipped step still counts, and a checkpoint due at it is saved"
                look = "at the steps after which a checkpoint is saved, and at where a restart "
                look += "begins"
            yield Finding(code, found, rule, look)
        if returned != wanted:
            found = f"{where}, rank {report.rank} returned {returned}; steps {wanted}, counted "
            found += "from 1, have a loss or a gradient that is not finite"
            look = "at which ranks add to the list, when, and what"
            if isinstance(returned, list) and set(map(str, wanted)) < set(map(str, returned)):
                look = "at what a bad step leaves behind for the next one, and at when a rank "
                look += "adds to the list"
            rule = "on every rank, train returns the steps that must be skipped, and no others"
            if moved := first_moved(reports, start, left):
                found = f"{where}, {moved}; rank {report.rank} returned {returned}"
                rule = "each step takes the next samples in index order, across the ranks"
                look = "at which samples a step takes, and which of them each rank takes"
            yield Finding("wrong-steps-skipped", found, rule, look)
    yield from weight_findings(reports, where)


def first_moved(reports: Sequence[RankReport], start: int, left: int) -> str:
    """The first step that trained other samples than those in index order; "" if none did."""
    passes = [report.of("forward") for report in reports]
    if any(len(own) != left for own in passes):
        return ""
    for number in range(left):
        ids = sorted(sample for own in passes for sample in own[number]["samples"])
        first = (start + number) % 5 * GLOBAL_BATCH_SIZE
        wanted = list(range(first, min(first + GLOBAL_BATCH_SIZE, NUM_SAMPLES)))
        if ids != wanted:
            text = f"step {start + number + 1} trained "
            text += f"samples {some(ids)}" if ids else "no samples"
            return f"{text}; in index order, it has samples {some(wanted)}"
    return ""


def weight_findings(reports: Sequence[RankReport], where: str) -> Iterator[Finding]:
    """The findings about weights that are finite."""
    first, references = reports[0].answer["weights"], reports[0].answer["references"]
    look = "at the weights with which each rank begins, and at what it does in a bad step"
    yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=f"{where}, ")
    began = [event["weights"] for event in reports[0].of("second_step")]
    if began and "restarted" not in where:
        difference, name = largest_difference(began[0], references["step 1"])
        if not difference <= 1e-5:
            found = f"{where}, the weights after step 1, which is not a bad one, differ by up "
            found += f"to {difference:.2g}, in {name}, from those of one process that starts "
            found += "with rank 0's weights"
            rule = "a good step follows the mean over its global batch, from rank 0's weights"
            look = "at the weights with which training begins, at the gradient, and at the rate"
            yield Finding("not-the-same-run", found, rule, look)
    difference, name = largest_difference(first, references[""])
    if not difference <= 1e-5:
        code, rule = "partial-step", RULE + ": neither weights nor optimizer state change"
        look = "at what a skipped step still changes, and at how a good step updates"
        if largest_difference(first, references["coasting"])[0] <= 1e-5:
            code = "moved-without-a-gradient"
        elif "restarted" in where:
            code, rule = "not-the-same-run", "a restart restores all that later steps depend on"
            look = "at everything that is saved, and at which ranks restore it"
        found = f"{where}, the weights differ by up to {difference:.2g}, in {name}, from those "
        found += "of an uninterrupted run that skips the bad steps"
        yield Finding(code, found, rule, look)


def from_step(start: int) -> Judge:
    """The judge of a job that began after step ``start``."""
    return only_first(lambda reports, _: judge(reports, start))


SCENARIOS = [
    Scenario(name="two", body=train_in("a"), judge=from_step(0), deadline_s=6),
    Scenario(
        name="killed",
        body=train_in("b"),
        judge=judge_killed,
        deadline_s=6,
        fault=Fault(rank=1, at="forward", count=6),
    ),
    Scenario(name="resumed", body=train_in("b"), judge=from_step(4), deadline_s=6),
    Scenario(name="three", body=train_in("c"), judge=from_step(0), world_size=3, deadline_s=6),
]

"""Two poisoned samples an epoch, one in the loss and one in the gradient only, and a kill."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import largest_difference, numbers, ranks_differ
from rehearsal.kit.judge.weights import weights_of_ranks
from rehearsal.kit.observe.restart import trains
from .poison import NormNet, expected, not_finite_files, poisoned_samples
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, Judge

CODES = {
    "weights-not-finite": "weights are NaN or infinite",
    "saved-not-finite": "a checkpoint holds NaN or infinite values",
    "ranks-differ": "the ranks end with different weights",
    "other-steps-left-out": "what train returns are not the steps to leave out",
    "moved-without-a-gradient": "a step that was to be left out moves the weights by momentum",
    "half-a-step": "a step that was to be left out trains a part of its samples or gradient",
    "not-the-same-run": "the weights are not those of a run without the poisoned steps",
    "trains-again": "a restart trains steps that are in a checkpoint",
}
# Five steps an epoch. Sample 8 spoils the loss of steps 2 and 7, sample 16 the gradient of
# steps 4 and 9: on rank 1 of two, on ranks 0 and 1 of three.
NUM_SAMPLES, GLOBAL_BATCH_SIZE, EPOCHS, EVERY, LR = 23, 5, 2, 2, 0.01
LEFT_OUT = [2, 4, 7, 9]
RULE = "a step with a loss or gradient that is not finite on any rank is left out on all"


def train_in(run: str) -> Body:
    """A body that trains in the folder of ``run``, or resumes there."""
    train = trains(
        run,
        NUM_SAMPLES,
        model=lambda context: NormNet(seed=context.rank),
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
        return {**answer, "references": references, "not_finite_files": found}

    return body


def judge(reports: Sequence[RankReport], start: int = 0) -> Iterator[Finding]:
    """The findings of a job that began after step ``start``; the first one counts."""
    where = f"{len(reports)} rank(s)" + f", restarted after step {start}" * bool(start)
    for report in reports:
        weights, rank = report.answer["weights"], report.rank
        if names := report.answer["not_finite_files"]:
            found = f"{where}: NaN or infinity in {names[0]}"
            rule = "a checkpoint is something to go back to"
            look = "at what lies between the optimizer's step and the save"
            yield Finding("saved-not-finite", found, rule, look)
        for name, text in weights.items():
            if not all(map(math.isfinite, numbers(text))):
                found = f"{where}: rank {rank} ends with {name} not finite"
                look = "at steps 2 and 4: what is not finite, on which rank, and who knows"
                yield Finding("weights-not-finite", found, RULE, look)
    left, wanted = EPOCHS * 5 - start, [step for step in LEFT_OUT if step > start]
    for report in reports:
        passes, returned = len(report.of("forward")), report.answer["returned"]
        if start and passes != left:
            found = f"{where}: rank {report.rank} trains {passes} steps; {left} are left"
            rule = "a step that is left out is a step, and its checkpoint is due"
            look = "at the steps after which a checkpoint is written"
            yield Finding("trains-again", found, rule, look)
        if returned != wanted:
            found = f"{where}: rank {report.rank} returns {returned}; steps {wanted}, counted "
            found += "from 1, have a loss or a gradient that is not finite"
            yield Finding("other-steps-left-out", found, RULE, "at who adds to the list, when")
    yield from weight_findings(reports, where)


def weight_findings(reports: Sequence[RankReport], where: str) -> Iterator[Finding]:
    """The findings about weights that are finite."""
    first, references = reports[0].answer["weights"], reports[0].answer["references"]
    look = "at what differs before the first step"
    yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=f"{where}: ")
    difference, name = largest_difference(first, references[""])
    if not difference <= 1e-5:
        code = "half-a-step" if "restarted" not in where else "not-the-same-run"
        if largest_difference(first, references["coasting"])[0] <= 1e-5:
            code = "moved-without-a-gradient"
        found = f"{where}: up to {difference:.2g} in {name} away from a run without these steps"
        rule = RULE + ": neither weights nor optimizer change"
        yield Finding(code, found, rule, "at what a step that is left out still changes")


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

"""Poisoned samples, in the loss, in the gradient or in both; and a kill."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import largest_difference, numbers, ranks_differ
from rehearsal.kit.judge.weights import weights_of_ranks
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.steps import trains_in_steps

from .plan import EPOCHS, Run, drawn
from .poison import NormNet, expected, not_finite_files, poisoned_samples

CODES = {
    "weights-not-finite": "weights end as NaN or infinity",
    "saved-not-finite": "a checkpoint contains NaN or infinity",
    "ranks-differ": "the ranks end with different weights",
    "wrong-steps-skipped": "train does not return the steps that had to be skipped",
    "moved-without-a-gradient": "in a skipped step, momentum still moves the weights",
    "wrong-number-of-passes": "a step does not run exactly one forward pass",
    "partial-step": "a step that had to be skipped trains part of its samples or gradient",
    "wrong-samples": "a step does not take the next samples in index order",
    "wrong-start": "training doesn't start from rank 0's weights",
    "not-the-same-run": "a good step or a restart leads to different weights than it should",
    "repeats-saved-steps": "a restart trains steps that should be in a checkpoint",
}
RULE = "if the loss or gradient is NaN or infinite on any rank, every rank skips the step"
TOLERANCE = 1e-5


def train_in(folder: str, run: Run) -> Body:
    """A body that trains in ``folder``, or resumes there."""
    train = trains_in_steps(
        folder,
        run.num_samples,
        model=lambda context: NormNet(seed=context.rank),
        data=lambda _, __: poisoned_samples(run),
        before=list_backward,
        epochs=EPOCHS,
        global_batch_size=run.global_batch_size,
        checkpoint_every=run.every,
        lr=run.lr,
    )

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        found = not_finite_files(context.folder / folder)
        answer = train(context, learner)
        answer["not_finite_files"] = found
        if context.rank == 0:
            found += not_finite_files(context.folder / folder)
            references = {"": expected(run), "coasting": expected(run, coasts=True)}
            answer["references"] = references
        return answer

    return body


def judge(
    run: Run, start: int, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """The findings of a job that began after step ``start``; the first part that has any."""
    where = f"on {counted(len(reports), 'rank')}"
    where += f", restarted after the save due at step {start}" * bool(start)
    look = "at each bad step: what is not finite, and which ranks know about it?"
    yield from first_of(
        finite_findings(reports, where, look),
        pass_findings(run, start, reports, where),
        sample_findings(run, start, reports, where),
        weight_findings(run, start, reports, where),
        skip_findings(run, start, reports, where),
        ranks_differ(weights_of_ranks(reports), look, most=0.0, where=f"{where}, "),
    )


def finite_findings(reports: Sequence[RankReport], where: str, look: str) -> Iterator[Finding]:
    """A finding if a checkpoint or a model has NaN or infinity."""
    for report in reports:
        if names := report.answer["not_finite_files"]:
            found = f"{where}, the checkpoint {names[0]} contains NaN or infinity"
            rule = "a checkpoint is something that a run can resume from"
            where_to_look = "at what happens between the optimizer's step and the save"
            weights = report.answer["weights"].values()
            if all(math.isfinite(value) for text in weights for value in numbers(text)):
                yield Finding("saved-not-finite", found, rule, where_to_look)
                return
    for report in reports:
        for name, text in report.answer["weights"].items():
            if not all(map(math.isfinite, numbers(text))):
                found = f"{where}, rank {report.rank} ended with NaN or infinity in {name}"
                yield Finding("weights-not-finite", found, RULE, look)
                return


def pass_findings(
    run: Run, start: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if a rank ran more or fewer forward passes than there were steps."""
    left = run.steps - start
    for report in reports:
        passes = [event["samples"] for event in report.of("forward")]
        shares = [
            run.samples(step)[report.rank :: len(reports)]
            for step in range(start + 1, run.steps + 1)
        ]
        # A rank without samples in a step needs no pass.
        if len(passes) == left or (
            len(passes) < left
            and len(list(filter(None, passes))) == len(list(filter(None, shares)))
        ):
            continue
        found = f"{where}, rank {report.rank} ran {len(passes)} forward "
        found += f"pass{'es' * (len(passes) != 1)}; "
        found += f"{left} steps were left" if start else f"the run has {left} steps"
        code = "wrong-number-of-passes"
        rule = "each step, skipped or not, runs one forward pass"
        look = "at how often the loop runs, and at each call of the model in it"
        if start:
            code = "repeats-saved-steps" if len(passes) > left else code
            rule = "a skipped step still counts, and a checkpoint due at it is saved"
            look = (
                "at the steps after which a checkpoint is saved, and at where a restart begins"
            )
        yield Finding(code, found, rule, look)
        return


def sample_findings(
    run: Run, start: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding at the first step that trained other samples than the next in index order."""
    passes = [report.of("forward") for report in reports]
    for number, events in enumerate(zip(*passes, strict=False), start + 1):
        ids = sorted(sample for event in events for sample in event["samples"])
        if ids != run.samples(number) and all(len(own) == len(passes[0]) for own in passes):
            found = f"{where}, step {number} trained "
            found += f"samples {some(ids)}" if ids else "no samples"
            found += f"; in index order, it has samples {some(run.samples(number))}"
            yield Finding(
                "wrong-samples",
                found,
                "each step takes the next samples in index order, across the ranks",
                "at which samples a step takes, and which of them each rank takes",
            )
            return


def skip_findings(
    run: Run, start: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if a rank didn't return the bad steps."""
    wanted = [step for step in run.skipped if step > start]
    for report in reports:
        returned = report.answer["returned"]
        if returned != wanted:
            found = (
                f"{where}, rank {report.rank} returned {str(returned)[:200]}; steps {wanted},"
            )
            found += " counted from 1, have a loss or a gradient that is not finite"
            look = "at what decides that a step is bad, and at which ranks add to the list, "
            look += "when, and what"
            if isinstance(returned, list) and set(map(str, wanted)) < set(map(str, returned)):
                look = "at what a bad step leaves behind for the next one, and at when a rank "
                look += "adds to the list"
            rule = "on every rank, train returns the steps that must be skipped, and no others"
            yield Finding("wrong-steps-skipped", found, rule, look)
            return


def weight_findings(
    run: Run, start: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding at the first step after which the weights aren't the expected ones."""
    references = reports[0].answer["references"]
    begun = [[event["weights"] for event in report.of("step_begins")] for report in reports]
    if any(len(own) != run.steps - start for own in begun):
        begun = [[] for _ in reports]  # a rank left out a pass that had no samples
    if all(begun):
        rule = "all ranks begin with the same weights"
        firsts = [own[0] for own in begun]
        look = "at the weights with which each rank begins"
        begin = f"{where}, before the first step, "
        differ = list(ranks_differ(firsts, look, most=0.0, where=begin, rule=rule))
        yield from differ
        if differ:
            return
    for rank, own in enumerate(begun):
        own = [*own, reports[rank].answer["weights"]]
        first = run.steps + 1 - len(own)
        for step, (ours, theirs) in enumerate(
            zip(own, references[""][first:], strict=True), first
        ):
            difference, name = largest_difference(ours, theirs)
            if difference <= TOLERANCE:
                continue
            found = f"{where}, rank {rank}'s weights "
            found += f"after step {step}" if step else "before step 1"
            found += f" differ by up to {difference:.2g}, in {name}, from those of one process "
            found += "that starts with rank 0's weights and skips the bad steps"
            code, rule = (
                "not-the-same-run",
                "a good step is an SGD step with a momentum of 0.9 ",
            )
            rule += "on the mean over its global batch"
            look = "at the gradient, at what it is divided by, and at the optimizer"
            if step == start == 0:
                code = "wrong-start"
                rule = "training starts from rank 0's weights, on every rank"
                look = "at the weights with which each rank begins"
            elif step == start:
                rule = "a restart restores all that later steps depend on"
                look = "at everything that is saved, and at which ranks restore it"
            elif step in run.skipped and step not in (reports[rank].answer["returned"] or ()):
                yield from skip_findings(run, start, reports, where)
                return
            elif step in run.skipped:
                code, rule = (
                    "partial-step",
                    RULE + ": neither weights nor optimizer state change",
                )
                look = "at what a skipped step still changes"
                if largest_difference(ours, references["coasting"][step])[0] <= TOLERANCE:
                    code = "moved-without-a-gradient"
            elif step == start + 1 and start:
                rule = "a restart restores all that later steps depend on"
                look = "at everything that is saved, and at which ranks restore it"
            yield Finding(code, found, rule, look)
            return


def scenarios(seed: int) -> list[Scenario]:
    """A run on two ranks, the same run killed and resumed, and one on three ranks."""
    two, three = drawn(seed, 2), drawn(seed, 3)
    return [
        Scenario(
            name="two", body=train_in("a", two), judge=partial(judge, two, 0), deadline_s=6
        ),
        Scenario(
            name="killed",
            body=train_in("b", two),
            judge=judge_killed,
            deadline_s=6,
            fault=Fault(rank=two.killed_rank, at="forward", count=two.start + 2),
        ),
        Scenario(
            name="resumed",
            body=train_in("b", two),
            judge=partial(judge, two, two.start),
            deadline_s=6,
        ),
        Scenario(
            name="three",
            body=train_in("c", three),
            judge=partial(judge, three, 0),
            world_size=3,
            deadline_s=6,
        ),
    ]

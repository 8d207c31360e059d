"""What graders of restarts share: a run is killed, started again, and its lineage is judged.

The lineage of a restarted run: the steps of the killed attempt up to the checkpoint that counts,
and then the steps of the attempt that went on from it. Plain data only, but for ``train_watched``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rehearsal.evidence import RankReport, killed
from rehearsal.harness import Weights, largest_difference, some, trained_by_step
from rehearsal.harness import watch_samples, weights_of
from rehearsal.rank import RankContext
from rehearsal.verdict import Finding

# What the findings below may say, for a grader's CODES.
CODES = {
    "not-all-steps": "a run that nobody disturbs takes another number of steps than planned",
    "starts-over": "a restart trains from the beginning though a checkpoint is there",
    "epoch-skipped": "a restarted run leaves out an epoch's worth of every sample",
    "epoch-repeated": "a restarted run trains an epoch's worth of every sample again",
    "never-trained": "a sample is left out",
    "trained-twice": "a sample is trained more than once per epoch",
    "other-steps": "a restart takes more or fewer steps than were left",
    "ranks-differ": "the ranks end with different weights",
    "not-the-same-run": "a restarted run ends with other weights than one without a restart",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How many samples and steps a run has."""

    num_samples: int
    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch


def train_watched(
    context: RankContext, model: nn.Module, run: str, train: Callable[[Path], Any]
) -> dict[str, Any]:
    """Train in the folder of ``run``, which later jobs of the check find again."""
    folder = context.folder / run
    folder.mkdir(exist_ok=True)
    watch_samples(context, model)

    def first_forward(*_: object) -> None:
        context.record("first_forward", weights=weights_of(model))
        handle.remove()

    handle = model.register_forward_pre_hook(first_forward)
    returned = train(folder)
    return {"weights": weights_of(model), "returned": returned}


# ---------------------------------------------------------------- in the judges


def steps_taken(reports: Sequence[RankReport]) -> int:
    """Optimizer steps of the rank that took most."""
    return max(len(report.of("optimizer_step")) for report in reports)


def first_weights(reports: Sequence[RankReport]) -> list[Weights]:
    """With which weights each rank began to train; none for a rank that did not."""
    return [event["weights"] for report in reports for event in report.of("first_forward")]


def samples_of_steps(reports: Sequence[RankReport]) -> list[list[int]]:
    """Samples of each step, over all ranks."""
    by_rank = [trained_by_step(report) for report in reports]
    count = max(map(len, by_rank))
    return [sum((steps[s] for steps in by_rank if s < len(steps)), []) for s in range(count)]


def whole_findings(plan: Plan, reports: Sequence[RankReport], look: str) -> Iterator[Finding]:
    """Findings in a run from start to end that nobody disturbs."""
    taken = steps_taken(reports)
    where = f"{len(reports)} rank(s), without a restart"
    if taken != plan.steps:
        yield Finding(
            "not-all-steps",
            f"{where}: {taken} optimizer steps; {plan.epochs} epochs of "
            f"{plan.steps_per_epoch} steps are {plan.steps}",
            "each epoch is trained once, from its first to its last step",
            look,
        )
        return
    yield from cover(plan, samples_of_steps(reports), where, look)
    yield from rank_findings(reports, look)


def killed_findings(reports: Sequence[RankReport], look: str) -> Iterator[Finding]:
    """A finding if the kill of this job never came: the run did not get so far."""
    if not any(killed(report) for report in reports):
        yield Finding(
            "not-all-steps",
            f"a run that was to be killed ended before that, after {steps_taken(reports)} "
            "optimizer steps",
            "each epoch is trained once, from its first to its last step",
            look,
        )


def restart_findings(
    plan: Plan,
    attempts: Sequence[tuple[Sequence[RankReport], int]],
    reports: Sequence[RankReport],
    whole: Sequence[RankReport] | None,
    look: str,
    *,
    tolerance: float = 0.0,
) -> Iterator[Finding]:
    """Findings in a run that was killed and started again.

    Args:
        attempts: those before, each with the number of its steps that survive.
        reports: the last attempt, which ran to the end.
        whole: the same run without a restart; None to leave the weights out.
        tolerance: for weights; 0 asks for the same bits.
    """
    start, taken = sum(count for _, count in attempts), steps_taken(reports)
    left = plan.steps - start
    where = f"{len(reports)} rank(s), restarted with a checkpoint of step {start}"
    if (
        start
        and taken == plan.steps
        and first_weights(reports) == first_weights(attempts[0][0])
    ):
        yield Finding(
            "starts-over",
            f"{where}: the restart took all {taken} optimizer steps, from the first weights on",
            "a restart goes on from the newest checkpoint that is whole",
            look,
        )
        return
    lineage = [step for before, count in attempts for step in samples_of_steps(before)[:count]]
    findings = list(cover(plan, lineage + samples_of_steps(reports), where, look))
    if findings:
        yield findings[0]
    elif taken != left:
        yield Finding(
            "other-steps",
            f"{where}: the restart took {taken} optimizer steps where {left} of {plan.steps} "
            "were left",
            "killed and started again, a run takes the steps that it would have taken",
            look,
        )
    elif whole is not None:
        yield from rank_findings(reports, look)
        ours, theirs = reports[0].answer["weights"], whole[0].answer["weights"]
        difference, name = largest_difference(ours, theirs)
        if not difference <= tolerance:
            yield Finding(
                "not-the-same-run",
                f"{where}: it ends up to {difference:.2g} in {name} away from the run that "
                "nobody disturbed",
                "a restart restores everything that the next steps depend on",
                look,
            )


def cover(
    plan: Plan, steps: Sequence[Sequence[int]], where: str, look: str
) -> Iterator[Finding]:
    """A finding if a run's steps did not train each sample once per epoch."""
    total = Counter(sample for step in steps for sample in step)
    extra = [s for s in range(plan.num_samples) if total[s] > plan.epochs]
    missing = [s for s in range(plan.num_samples) if total[s] < plan.epochs]
    rule = "each epoch trains each sample exactly once, over all ranks and all restarts"
    sides = [("epoch-repeated", extra), ("epoch-skipped", missing)]
    for code, samples in sides:
        if len(samples) == plan.num_samples:
            least, most = min(total.values(), default=0), max(total.values(), default=0)
            times = f"{least}" if least == most else f"{least} to {most}"
            yield Finding(
                code,
                f"{where}: each of {plan.num_samples} samples {times} times in {plan.epochs} "
                "epochs",
                rule,
                look,
            )
            return
    for code, samples, what in (
        ("never-trained", missing, "less"),
        ("trained-twice", extra, "more"),
    ):
        if samples:
            yield Finding(
                code,
                f"{where}: {len(samples)} of {plan.num_samples} samples {what} than "
                f"{plan.epochs} times in {plan.epochs} epochs: {some(samples)}",
                rule,
                look,
            )
            return


def rank_findings(reports: Sequence[RankReport], look: str) -> Iterator[Finding]:
    """A finding if the ranks ended with different weights."""
    for report in reports[1:]:
        difference, name = largest_difference(
            reports[0].answer["weights"], report.answer["weights"]
        )
        if not difference == 0:
            yield Finding(
                "ranks-differ",
                f"ranks 0 and {report.rank} of {len(reports)} end with different weights, by "
                f"up to {difference:.2g} in {name}",
                "ranks that start alike and take the same steps stay alike",
                look,
            )
            return

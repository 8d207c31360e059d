"""What graders of restarts share: a run is killed, started again, and its lineage is judged.

The lineage of a restarted run: the steps of a killed attempt up to the checkpoint that counts,
then those of the attempt that went on from it. Plain data only, but for ``train_watched``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rehearsal.grading.drill import Judge
from rehearsal.engine.reports import RankReport, killed
from rehearsal.kit.harness import Weights, largest_difference, some, trained_by_step
from rehearsal.kit.harness import watch_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding

# What the findings below may say. A grader's CODES are these and its own.
CODES = {
    "not-all-steps": "a run that nobody disturbs takes another number of steps than planned",
    "ranks-differ": "the ranks end with different weights",
    "starts-over": "a restart trains from the first weights on though a checkpoint is there",
    "never-trained": "a sample is left out",
    "trained-twice": "a sample is trained more than once per epoch",
    "not-the-same-run": "a restarted run ends with other weights than one without a restart",
}
CODES_OF_EPOCHS = {
    "epoch-left-out": "every sample is trained too rarely",
    "epoch-trained-again": "every sample is trained too often",
}
WRITES = ("open", "torch.save")  # operations of "file" events


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
    folder.mkdir(exist_ok=True, parents=True)
    watch_samples(context, model)

    def first_forward(*_: object) -> None:
        context.record("first_forward", weights=weights_of(model))
        handle.remove()

    handle = model.register_forward_pre_hook(first_forward)
    returned = train(folder)
    return {"weights": weights_of(model), "returned": returned}


def strike(context: RankContext, count: int, data: bytes | None) -> None:
    """End this rank in its ``count``-th write to the folder, which leaves ``data`` of the file.

    With ``data`` None: before its ``count``-th rename, removal or the like.
    """
    record: Callable[..., None] = context.record
    seen = 0

    def recorded(kind: str, **facts: Any) -> None:
        nonlocal seen
        record(kind, **facts)
        if kind != "file" or not facts["path"] or facts["op"] == "fsync":
            return
        if (facts["op"] in WRITES) != (data is not None):
            return
        seen += 1
        if seen == count:
            if data is not None:
                context.is_armed = False
                (context.folder / facts["path"]).write_bytes(data)
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(context, "record", recorded)  # noqa: B010 - mypy knows it as a method


def tell_foreign_files(context: RankContext, disks: Path) -> None:
    """Record as "foreign" what is opened below ``disks``, but not on this rank's own."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.abspath(arguments[0])
            if path.startswith(f"{disks}/") and f"/node-{context.rank}/" not in path:
                context.record("foreign", path=path.removeprefix(f"{disks}/"))

    sys.addaudithook(watch)


def kill(step: int) -> Fault:
    """End rank 1 after its ``step``-th optimizer step."""
    return Fault(rank=1, at="optimizer_step", count=step)


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
    steps: list[list[int]] = [[] for _ in range(max(map(len, by_rank)))]
    for of_rank in by_rank:
        for step, samples in zip(steps, of_rank, strict=False):
            step += samples
    return steps


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
    for report in reports[1:]:
        ours = reports[0].answer["weights"]
        difference, name = largest_difference(ours, report.answer["weights"])
        if difference != 0:
            yield Finding(
                "ranks-differ",
                f"ranks 0 and {report.rank} of {len(reports)} end with different weights, by "
                f"up to {difference:.2g} in {name}",
                "ranks that start alike and take the same steps stay alike",
                look,
            )
            return


def killed_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the kill of this job never came: the run did not get so far."""
    if not any(killed(report) for report in reports):
        yield Finding(
            "not-all-steps",
            f"a run that was to be killed had ended before that, after {steps_taken(reports)} "
            "optimizer steps",
            "each epoch is trained once, from its first to its last step",
            "at what lets the loops end",
        )


def judge_killed(reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """The judge of a scenario that only has to be killed."""
    return killed_findings(reports)


def restart_findings(
    plan: Plan,
    attempts: Sequence[tuple[Sequence[RankReport], int]],
    reports: Sequence[RankReport],
    whole: Sequence[RankReport] | None,
    look: str,
    *,
    tolerance: float = 0.0,
    tells_epochs: bool = False,
) -> Iterator[Finding]:
    """Findings in a run that was killed and started again.

    Args:
        attempts: those before, each with the number of its steps that survive.
        reports: the last attempt, which ran to the end.
        whole: the same run without a restart; None to leave the weights out.
        tolerance: for weights; 0 asks for the same bits.
        tells_epochs: as ``cover`` has it.
    """
    start, taken = sum(count for _, count in attempts), steps_taken(reports)
    where = f"{len(reports)} rank(s), restarted with a checkpoint of step {start}"
    began = first_weights(reports)
    if start and taken == plan.steps and began == first_weights(attempts[0][0])[: len(began)]:
        yield Finding(
            "starts-over",
            f"{where}: the restart took all {taken} optimizer steps, from the first weights on",
            "a restart goes on from the newest checkpoint that is whole",
            look,
        )
        return
    lineage = [step for before, count in attempts for step in samples_of_steps(before)[:count]]
    lineage += samples_of_steps(reports)
    findings = list(cover(plan, lineage, where, look, tells_epochs=tells_epochs))
    yield from findings
    if findings or whole is None:
        return
    for report in reports:
        difference, name = largest_difference(
            whole[0].answer["weights"], report.answer["weights"]
        )
        if not difference <= tolerance:
            yield Finding(
                "not-the-same-run",
                f"{where}: rank {report.rank} ends up to {difference:.2g} in {name} away from "
                "the run that nobody disturbed",
                "a restart restores everything that the next steps depend on, on every rank",
                look,
            )
            return


def after(
    plan: Plan,
    whole: str,
    look: str,
    attempts: Mapping[str, int],
    *,
    tells_epochs: bool = False,
    tolerance: float = 0.0,
) -> Judge:
    """The judge of a restart.

    Args:
        whole: the scenario that nobody disturbed; "" for none.
        attempts: the scenarios before, and how many steps of each survive.
    """

    def judge(reports: Sequence[RankReport], earlier: Any) -> Iterator[Finding]:
        before = [(earlier[name], count) for name, count in attempts.items()]
        undisturbed = earlier.get(whole)
        return restart_findings(
            plan,
            before,
            reports,
            undisturbed,
            look,
            tells_epochs=tells_epochs,
            tolerance=tolerance,
        )

    return judge


def cover(
    plan: Plan,
    steps: Sequence[Sequence[int]],
    where: str,
    look: str,
    *,
    tells_epochs: bool = False,
) -> Iterator[Finding]:
    """A finding if a run's steps did not train each sample once per epoch.

    Args:
        tells_epochs: a code of its own where it concerns every sample.
    """
    total = Counter(sample for step in steps for sample in step)
    extra = [s for s in range(plan.num_samples) if total[s] > plan.epochs]
    missing = [s for s in range(plan.num_samples) if total[s] < plan.epochs]
    sides = (
        ("never-trained", "epoch-left-out", missing, "less"),
        ("trained-twice", "epoch-trained-again", extra, "more"),
    )
    for code, code_of_all, samples, what in sides:
        if samples:
            is_all = tells_epochs and len(samples) == plan.num_samples
            yield Finding(
                code_of_all if is_all else code,
                f"{where}: {len(samples)} of {plan.num_samples} samples {what} than "
                f"{plan.epochs} times in {plan.epochs} epochs: {some(samples)}",
                "each epoch trains each sample exactly once, over all ranks and all restarts",
                look,
            )
            return

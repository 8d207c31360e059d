"""BatchNorm's running statistics: the same on all ranks where they are used, and restored."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import most_steps
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_rank_changes
from rehearsal.kit.judge.restart import judge_killed
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.restart import trains

from .normed import NormedNet, expected, samples_of, state_of, watch_passes
from .plan import EPOCHS, Run, drawn

FINDINGS = FindingTable(
    {
        "not-all-steps": (
            "a run doesn't take its steps, or a restart doesn't resume from the newest save",
            "a run takes each step once; a restart resumes from the newest checkpoint",
            "at where a run begins and ends, and at the steps after which it saves",
        ),
        "evaluation-not-shared": (
            "the ranks don't share the held-out samples of an evaluation",
            "in each evaluation, each held-out sample is evaluated once, on one of the ranks",
            "at which held-out samples a rank takes, and how often",
        ),
        "different-weights": (
            "the weights differ from those of the run that the brief describes",
            "a step follows the mean over its samples, and a rank normalizes its own share",
            "at what a step depends on, and at what a restart restores",
        ),
        "different-statistics": (
            "the ranks agree on running statistics that are not the mean of their own",
            "wherever running statistics are used, they are the mean over the ranks, except "
            "for the counts",
            "at each buffer: who has which value before the evaluation, the save and the end?",
        ),
        "wrong-evaluation": (
            "train returns evaluations that don't match its model",
            "train returns, on every rank, the held-out loss after each epoch that it finished",
            "at the model's state and mode when it's evaluated, the mean, and what is returned",
        ),
        "wrong-log": (
            "rank 0's lines don't report the evaluations",
            "after each epoch, rank 0, and no other, prints its step and evaluation",
            "at what is printed, by which ranks, and at the numbers in it",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    **WRITER_CODES,
    "ranks-differ": "the ranks end with different weights or statistics",
}
# BatchNorm on few samples magnifies the rounding of sums in another order.
TOLERANCE = 1e-4
LINE = re.compile(r"^step (\d+): evaluation (\d+(?:\.\d+)?)$", re.MULTILINE)


def train_in(folder: str, run: Run) -> Any:
    """A body that trains in ``folder``, or resumes there."""

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        reference = expected(run)
        made: list[NormedNet] = []

        def model(context: RankContext) -> NormedNet:
            made.append(NormedNet(seed=context.rank))
            watch_passes(context, run, made[0])
            return made[0]

        def data(_: RankContext, __: int) -> list[Any]:
            trained, held_out = samples_of(run)
            return [*trained, held_out]

        answer = trains(
            folder,
            run.num_samples,
            model=model,
            data=data,
            epochs=EPOCHS,
            global_batch_size=run.global_batch_size,
            checkpoint_every=run.checkpoint_every,
            lr=run.lr,
            before=list_backward,
        )(context, learner)
        return {**answer, "weights": state_of(made[0]), "expected": reference}

    return body


def judge(
    run: Run, start: int, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """The findings of a job that began after step ``start``."""
    if not all(report.has_answer for report in reports):
        # A rank crashes where another one has moved the file that both wrote.
        yield from one_rank_changes(reports)
        return
    where = f"on {counted(len(reports), 'rank')}, "
    where += f"restarted after the save due at step {start}, " if start else ""
    finished = EPOCHS - start // run.steps_per_epoch
    yield from first_of(
        one_rank_changes(reports),
        step_findings(run, start, reports, where),
        share_findings(run, finished, reports, where),
        ranks_differ(
            weights_of_ranks(reports),
            "at each parameter and buffer: what makes it equal on all ranks?",
            where=where,
            rule="all ranks end with the same weights and running statistics",
        ),
        state_findings(reports, where),
        evaluation_findings(run, finished, reports, where),
    )


def step_findings(
    run: Run, start: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if the run took more or fewer steps than were left."""
    passes = max(len(train_passes(run, report)) for report in reports)
    # A rank may write its updates out, without an optimizer of torch's.
    taken = most_steps(reports) or passes
    if taken != run.steps - start or passes != taken:
        found = f"{where}a rank ran {passes} training passes and {taken} steps; "
        found += f"{run.steps - start} steps were left"
        yield FINDINGS("not-all-steps", found)


def train_passes(run: Run, report: RankReport) -> list[list[int]]:
    """The samples of each forward pass that trains."""
    passes = [event["samples"] for event in report.of("forward")]
    return [ids for ids in passes if ids and max(ids) < run.num_samples]


def share_findings(
    run: Run, finished: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if a held-out sample wasn't evaluated once per finished epoch."""
    counts = Counter(
        sample
        for report in reports
        for event in report.of("evaluated")
        for sample in event["samples"]
    )
    ids = range(run.num_samples, run.num_samples + run.num_held_out)
    wrong = [sample - run.num_samples for sample in ids if counts[sample] != finished]
    if wrong and not finished:
        found = f"{where}the ranks evaluated held-out samples {some(wrong)}, and they finished "
        yield FINDINGS("wrong-evaluation", found + "no epoch")
    elif wrong:
        found = f"{where}held-out samples {some(wrong)} were evaluated "
        found += f"{counts[wrong[0] + run.num_samples]} times, over all ranks, in "
        found += counted(finished, "evaluation")
        yield FINDINGS("evaluation-not-shared", found)


def state_findings(reports: Sequence[RankReport], where: str) -> Iterator[Finding]:
    """A finding if weights, or else running statistics, are not the expected ones."""
    ours, theirs = reports[0].answer["weights"], reports[0].answer["expected"]["weights"]
    statistics = {name for name in theirs if "running" in name or "num_batches" in name}
    for code, are_statistics in (("different-weights", False), ("different-statistics", True)):
        difference, name = largest_difference(
            {name: ours[name] for name in ours if (name in statistics) == are_statistics},
            {name: theirs[name] for name in theirs if (name in statistics) == are_statistics},
        )
        if not difference <= TOLERANCE:
            found = (
                f"{where}the state at the end differs by up to {difference:.2g}, in {name}, "
            )
            found += "from that of an uninterrupted run in one process that plays all ranks"
            yield FINDINGS(code, found)
            return


def evaluation_findings(
    run: Run, finished: int, reports: Sequence[RankReport], where: str
) -> Iterator[Finding]:
    """A finding if a rank returned, or rank 0 printed, other evaluations."""
    wanted = reports[0].answer["expected"]["evaluations"][EPOCHS - finished :]
    for report in reports:
        returned = report.answer["returned"]
        if not (
            isinstance(returned, list)
            and len(returned) == len(wanted)
            and all(isinstance(value, float) for value in returned)
            and all(
                math.isclose(*two, rel_tol=1e-4) for two in zip(returned, wanted, strict=True)
            )
        ):
            found = (
                f"{where}rank {report.rank} returned {str(returned)[:200]}; the evaluations "
            )
            found += f"of the epochs that it finished are {wanted}"
            yield FINDINGS("wrong-evaluation", found)
            return
    ends = [run.steps_per_epoch * epoch for epoch in range(1, EPOCHS + 1)][EPOCHS - finished :]
    for report in reports:
        printed = LINE.findall(report.output)
        lines = list(zip(ends, wanted, strict=True)) if report.rank == 0 else []
        if len(printed) != len(lines) or not all(
            int(step) == end and math.isclose(float(shown), value, abs_tol=0.006)
            for (step, shown), (end, value) in zip(printed, lines, strict=True)
        ):
            found = f"{where}rank {report.rank} printed (step, evaluation) {printed}; rank 0 "
            found += f"should print {lines}, and the others nothing"
            yield FINDINGS("wrong-log", found)
            return


def scenarios(seed: int) -> list[Scenario]:
    """A run on three ranks, and one on two: killed, resumed, and started again at its end."""
    three, two = drawn(seed, 3), drawn(seed, 2)
    return [
        Scenario(
            name="uninterrupted",
            body=train_in("a", three),
            judge=partial(judge, three, 0),
            world_size=3,
            deadline_s=6,
            judges_failures=True,
        ),
        Scenario(
            name="killed",
            body=train_in("b", two),
            judge=judge_killed,
            fault=Fault(rank=two.killed_rank, at="train_pass", count=two.killed_in),
            deadline_s=6,
        ),
        Scenario(
            name="resumed",
            body=train_in("b", two),
            judge=partial(judge, two, two.newest_save),
            deadline_s=6,
        ),
        Scenario(
            name="started again at its end",
            body=train_in("b", two),
            judge=partial(judge, two, two.steps),
            deadline_s=6,
        ),
    ]

"""Killed at every kind of moment, and started again when finished: is it still one run?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.epoch_run import CODES as RESTART_CODES
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.judge.epoch_run import POSITION, reference_of_run, whole_of_run
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.restarted import kill_of_run, kills_of, missing_saves, restart_of_run
from rehearsal.kit.judge.starts import RunStart, start_of
from rehearsal.kit.judge.weights import largest_difference

from . import runs
from .plan import CADENCES, TOGETHER, drawn, killed

SAVES = "at what is saved after a step and after an epoch's last one, and at what it counts"
FINDINGS = FindingTable(
    {
        "epoch-skipped": (
            "a restart skips an epoch: every sample is trained too few times",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "epoch-trained-again": (
            "a restart repeats an epoch: every sample is trained too often",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "no-save-at-epoch-end": (
            "no checkpoint is saved at an epoch's end",
            "checkpoints are due every checkpoint_every steps and at each epoch's end",
            SAVES,
        ),
        "finished-run-trains": (
            "a finished run trains, or loses its weights, when started again",
            "starting a finished run again takes no step and leaves its weights in the model",
            POSITION,
        ),
    }
)
CODES = {**RESTART_CODES, **FINDINGS.codes}
OF_ALL_SAMPLES = {"never-trained": "epoch-skipped", "trained-twice": "epoch-trained-again"}
Earlier = Mapping[str, Sequence[RankReport]]


def judge_uninterrupted(
    run: EpochRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of the uninterrupted run."""
    yield from whole_of_run(run, start_of(reports, run.name))


def judge_kill(
    run: EpochRun, in_step: int, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """A finding if the kill never came, or the two runs are not the same."""
    whole = start_of(earlier[f"{run.name}, uninterrupted"], run.name)
    yield from kill_of_run(whole, start_of(reports, f"{run.name}-killed"), reports, in_step)


def judge_again(
    run: EpochRun, fault: Fault | None, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The findings of the first start that is wrong, or of a save that is missing."""
    before = earlier[f"{run.name}, uninterrupted"]
    whole = start_of(before, run.name)
    kept = [moment for report in before for moment in report.answer]
    positions: list[int | None] = []

    def restarts() -> Iterator[Finding]:
        if fault:
            at = f"rank {fault.rank} was killed in step {fault.count}"
            start, done = start_of(reports, f"{run.name}-killed"), fault.count - 1
            yield from restarted(run, whole, start, reports, (at, run.due_by(done), done))
        for folder, (at, saved, done) in kills_of(run, kept):
            start = start_of(reports, folder)
            if done == run.steps:
                yield from finished_findings(at, whole, start, only_idle=True)
            yield from restarted(run, whole, start, reports, (at, saved, done))
            positions.extend(whole.position(rank.first) for rank in start.ranks if rank.first)

    def saves() -> Iterator[Finding]:
        for due, finding in missing_saves(run, positions, {done for _, _, done in kept}):
            is_end = due % run.steps_per_epoch == 0 and due % run.every != 0
            is_other = finding.code == "no-save-when-due" and is_end
            yield FINDINGS("no-save-at-epoch-end", finding.found) if is_other else finding

    is_complete = all(report.has_answer for report in reports)
    finished = start_of(reports, run.name)
    yield from first_of(
        reference_of_run(run, whole, reports[0].answer) if is_complete else (),
        islice(restarts(), 1),
        saves() if is_complete and run.world_size == 1 else (),
        finished_findings("the run had finished", whole, finished),
    )


def restarted(
    run: EpochRun,
    whole: RunStart,
    start: RunStart,
    reports: Sequence[RankReport],
    kill: tuple[str, int, int],
) -> Iterator[Finding]:
    """The findings of one restart, with codes of their own where every sample is affected."""
    for finding in restart_of_run(run, whole, start, reports, kill):
        at = whole.position(start.ranks[0].first) or 0
        if at == run.steps and finding.code == "trained-twice":
            yield FINDINGS("finished-run-trains", finding.found)
            return
        steps = (*whole.steps[:at], *start.steps)
        wrong = miscounted(
            (s for step in steps for s in step.samples), run.num_samples, run.epochs
        )
        is_all = run.num_samples in map(len, wrong)
        code = OF_ALL_SAMPLES.get(finding.code, finding.code) if is_all else finding.code
        yield finding._replace(code=code)


def finished_findings(
    at: str, whole: RunStart, start: RunStart, *, only_idle: bool = False
) -> Iterator[Finding]:
    """A finding if the start of a finished run takes a step, or lacks the final weights.

    Args:
        only_idle: it may have lost a checkpoint and take steps.
    """
    taken = max((len(rank.steps) for rank in start.ranks), default=0)
    ends = [rank.end for rank in start.ranks if rank.end]
    difference = max((largest_difference(whole.weights[-1], end)[0] for end in ends), default=0)
    if (taken and not only_idle) or (difference and not taken):
        found = f"{at}; started again, it took {counted(taken, 'step')}"
        if difference:
            found += f", and its weights then differed by up to {difference:.2g} from those it "
            found += "had ended with"
        yield FINDINGS("finished-run-trains", found)


def scenarios(seed: int) -> list[Scenario]:
    """A run on one rank, restarted from all of its saves, and one on several."""
    alone = drawn(seed, "alone", (1,), CADENCES)
    together = drawn(seed, "together", (2, 3), TOGETHER)
    rank, in_step = killed(seed, together)
    fault = Fault(rank=rank, at="in_step", count=in_step)

    def job(
        name: str, run: EpochRun, body: Callable[..., Any], judge: Any, *drawn: Any, **rest: Any
    ) -> Scenario:
        return Scenario(
            name=f"{run.name}, {name}",
            body=partial(body, run),
            judge=partial(judge, run, *drawn),
            world_size=run.world_size,
            deadline_s=6,
            **rest,
        )

    return [
        job("uninterrupted", alone, runs.whole, judge_uninterrupted),
        job("restarted", alone, runs.again, judge_again, None, judges_failures=True),
        job("uninterrupted", together, runs.whole, judge_uninterrupted),
        job("killed", together, runs.killed, judge_kill, in_step, fault=fault),
        job("restarted", together, runs.again, judge_again, fault, judges_failures=True),
    ]

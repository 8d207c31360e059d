"""Is each start after a kill the same run? Reads what ``observe.starts`` recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.verdict import Finding, counted, is_echo, shortened
from rehearsal.kit.judge.coverage import how_often, miscounted
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.judge.epoch_run import RESTARTED
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.starts import RunStart
from rehearsal.kit.judge.weights import largest_difference


def kill_of_run(
    whole: RunStart,
    start: RunStart,
    reports: Sequence[RankReport],
    in_step: int,
    most: float = 0.0,
) -> Iterator[Finding]:
    """A finding if a fresh start was not killed in this step, or is not the same run."""
    if not any(map(killed, reports)):
        found = f"the run ended after {counted(len(start.steps), 'step')}, before step "
        found += f"{in_step}, in which it was going to be killed"
        yield RESTARTED("not-all-steps", found)
    elif any(
        not largest_difference(ours, theirs)[0] <= most
        for ours, theirs in zip(start.weights, whole.weights, strict=False)
    ):
        found = "two fresh starts with the same arguments have different weights"
        rule, look = "the same arguments give the same run", "at what nothing seeds"
        yield RESTARTED("not-the-same-run", found)._replace(rule=rule, look=look)


def kills_of(
    run: EpochRun, kept: Sequence[tuple[str, str, int]]
) -> Iterator[tuple[str, tuple[str, int, int]]]:
    """For each kept moment its folder, and what ``restart_of_run`` needs to know."""
    written = {done for _, _, done in kept}
    for folder, where, done in kept:
        # A save is complete when the next one is due; a thread may write it until then.
        saved = run.due_by(run.due_by(done - 1) - 1)
        saved *= any(saved <= step < done for step in written)  # else it's a missing save
        yield folder, (f"killed {where}, with step {done} done", saved, done)


def missing_saves(
    run: EpochRun, positions: Sequence[int | None], written: set[int]
) -> Iterator[tuple[int, Finding]]:
    """The first due step, if any, after which no start resumed, and the finding.

    Args:
        positions: after which steps the starts have resumed.
        written: the steps after which the run has written to its folder.
    """
    dues = [due for due in run.dues if due < run.steps]
    if not written <= {*run.dues}:  # a thread may write: two saves in a row look like one
        dues = [due for due in dues if due + 1 not in dues]
    for due in [due for due in dues if due not in positions][:1]:
        others = sorted({p for p in positions if p})
        found = f"with checkpoint_every={run.every} and {run.steps_per_epoch} steps per epoch, "
        found += f"a checkpoint is due after step {due}. Wherever the run was killed, no "
        found += f"restart resumed there, only after steps {some(others, 20) or '0'}"
        yield due, RESTARTED("not-the-newest" if due in written else "no-save-when-due", found)


def restart_of_run(
    run: EpochRun,
    whole: RunStart,
    start: RunStart,
    reports: Sequence[RankReport],
    kill: tuple[str, int, int],
) -> Iterator[Finding]:
    """What is wrong with one restart: its beginning, its samples, or its weights.

    Args:
        kill: where it struck, the step from which the start resumes at the earliest, and the
            steps that were done by then.
    """
    if len(start.ranks) < len(reports):
        return  # another start is to blame
    at, saved, _ = kill
    where = f"{at}; the next start, on {counted(len(start.ranks), 'rank')}, "
    for report, rank in zip(reports, start.ranks, strict=True):
        failure = report.failure
        if failure and not is_echo(report) and not rank.steps and not rank.end:
            found = f"{where}failed on rank {report.rank}: {failure.kind}: "
            found += shortened(failure.message, 160)
            finding = RESTARTED("cannot-resume", found)
            yield finding._replace(
                look=f"at {failure.where or 'the restore'}, and {finding.look[3:]}"
            )
            return
    known = whole.began(start, run.tolerance)
    if len(set(known)) > 1:
        said = ["after no step of the run" if p is None else f"after step {p}" for p in known]
        found = f"{where}began with the weights of different steps, by rank: {some(said)}"
        yield RESTARTED("ranks-resume-apart", found)
    elif known:
        yield from first_of(
            _position_findings(whole, start, known[0], where, saved),
            _sample_findings(run, whole, start, known[0] or 0, where),
            _weight_findings(run, whole, start, known[0] or 0, where),
        )


def _position_findings(
    whole: RunStart, start: RunStart, at: int | None, where: str, saved: int
) -> Iterator[Finding]:
    """A finding if it did not resume with the weights of a late enough step."""
    begins = start.steps[0].samples if start.steps else []
    if at == 0 < saved and (not begins or begins == whole.steps[0].samples):
        found = f"{where}began with the initial weights, although step {saved} was saved"
        yield RESTARTED("starts-over", found)
    elif at is None or at == 0 < saved:
        which = (
            "weights that the uninterrupted run never had" if at is None else "initial weights"
        )
        yield RESTARTED("not-the-same-run", f"{where}began with {which}")
    elif at < saved:
        found = f"{where}resumed after step {at}, although step {saved} was saved"
        yield RESTARTED("not-the-newest", found)


def _sample_findings(
    run: EpochRun, whole: RunStart, start: RunStart, at: int, where: str
) -> Iterator[Finding]:
    """A finding if the steps before the kill and those after it are not whole epochs."""
    shares = {
        number: whole.steps_with(number, first)
        for number, rank in enumerate(start.ranks)
        if len(start.ranks) == len(whole.ranks)
        and rank.steps
        and (first := rank.steps[0].samples)
    }
    if shares and all(shares.values()) and not set.intersection(*shares.values()):
        said = [f"step {min(own) + 1} on rank {rank}" for rank, own in shares.items()]
        found = f"{where}had the weights after step {at}, and trained the samples of "
        yield RESTARTED("ranks-resume-apart", f"{found}{some(said)}")
        return
    epoch = at // run.steps_per_epoch * run.steps_per_epoch
    begun = {sample for step in whole.steps[epoch:at] for sample in step.samples}
    begins = start.complete_steps[0].samples if start.complete_steps else []
    trained = [step.samples for step in whole.steps]
    place = trained.index(begins) if begins in trained else at
    is_whole = all(rank.end for rank in start.ranks)
    if place > at and not is_whole:
        skipped = sorted(chain(*trained[at:place]))
        found = f"{where}resumed after step {at} with step {place + 1}, without samples "
        yield RESTARTED("never-trained", f"{found}{some(skipped)}")
        return
    is_again = place < at or (begins not in trained and begun.intersection(begins))
    if is_again and not is_whole:
        again = sorted(begun.intersection(begins)) or begins
        found = f"{where}resumed after step {at} and trained again samples {some(again)}"
        yield RESTARTED("trained-twice", found)
        return
    lineage = [step.samples for step in (*whole.steps[:at], *start.complete_steps)]
    extra, missing = miscounted(chain(*lineage), run.num_samples, run.epochs)
    if not is_whole:
        missing = []  # it did not get to its end
    if extra or missing:
        code = "never-trained" if missing else "trained-twice"
        found = f"{where}resumed after step {at}. Including the steps before it, "
        found += how_often([] if missing else extra, missing, run.num_samples, run.epochs)
        yield RESTARTED(code, found)


def _weight_findings(
    run: EpochRun, whole: RunStart, start: RunStart, at: int, where: str
) -> Iterator[Finding]:
    """A finding at the first step that the uninterrupted run took otherwise."""
    for number, (ours, theirs) in enumerate(
        zip(start.complete_steps, whole.steps[at:], strict=False), at + 1
    ):
        if ours.samples != theirs.samples:
            found = f"{where}trained samples {some(ours.samples)} in step {number}; the "
            found += f"uninterrupted run trained {some(theirs.samples)}"
            yield RESTARTED("not-the-same-run", found)
            return
        difference, name = largest_difference(ours.before, theirs.before)
        if not difference <= run.tolerance:
            found = (
                f"{where}resumed after step {at}, with its weights; after step {number - 1} "
            )
            found += f"they differ by {difference:.2g}, in {name}, from the uninterrupted run's"
            yield RESTARTED("not-the-same-run", found)
            return
    for rank, own in enumerate(start.ranks):
        if not own.end:
            continue
        difference, name = largest_difference(own.end, whole.weights[-1])
        if not difference <= run.tolerance:
            found = (
                f"{where}ended with other weights on rank {rank} than the uninterrupted run: "
            )
            found += f"they differ by {difference:.2g}, in {name}"
            yield RESTARTED("not-the-same-run", found)
            return

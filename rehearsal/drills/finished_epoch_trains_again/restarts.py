"""Is each start after a kill the same run? Reads what the ranks recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, is_echo, shortened
from rehearsal.kit.judge.coverage import how_often, miscounted
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.starts import RunStart, start_of
from rehearsal.kit.judge.weights import largest_difference

from .findings import FINDINGS
from .plan import Run

TOLERANCE = 2e-5  # float32 and another order of sums
Earlier = Mapping[str, Sequence[RankReport]]


def judge_again(run: Run, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The findings of the first start that is wrong, or of a save that is missing."""
    before = earlier[f"{run.name}, uninterrupted"]
    whole = start_of(before, run.name)
    kept = [moment for report in before for moment in report.answer]
    written = {done for _, _, done in kept}
    starts = []
    if run.world_size > 1:
        done = run.killed_in - 1
        at = f"rank {run.killed_rank} was killed in step {run.killed_in}"
        starts.append((at, f"{run.name}-killed", run.due_by(done), done))
    for folder, where, done in kept:
        # A save is complete when the next one is due; a thread may write it until then.
        saved = run.due_by(run.due_by(done - 1) - 1)
        saved *= any(saved <= step < done for step in written)  # else it's a missing save
        if not where.startswith("after its last"):
            at = f"killed {where}, with step {done} done"
            starts.append((at, folder, saved, done))
    finished = [("the run had finished", run.name, run.steps, run.steps)]
    positions: list[int | None] = []

    def restarts(kills: Sequence[tuple[str, str, int, int]]) -> Iterator[Finding]:
        for at, folder, saved, done in kills:
            start = start_of(reports, folder)
            yield from restart_findings(run, whole, start, reports, (at, saved, done))
            positions.extend(whole.position(rank.first) for rank in start.ranks if rank.first)

    is_complete = all(report.has_answer for report in reports)
    yield from first_of(
        reference_findings(run, whole, reports[0].answer) if is_complete else (),
        islice(restarts(starts), 1),
        save_findings(run, positions, written) if is_complete else (),
        restarts(finished),
    )


def save_findings(
    run: Run, positions: Sequence[int | None], written: set[int]
) -> Iterator[Finding]:
    """A finding if there is a step with a save due after which no start has resumed.

    Args:
        written: the steps after which the run has written to its folder.
    """
    dues = [due for due in run.dues if run.world_size == 1 and due < run.steps]
    if not written <= {*run.dues}:  # a thread may write: two saves in a row look like one
        dues = [due for due in dues if due + 1 not in dues]
    missing = [due for due in dues if due not in positions]
    if missing:
        due = missing[0]
        is_epoch_end = due % run.steps_per_epoch == 0 and due % run.every != 0
        others = sorted({p for p in positions if p})
        found = f"with checkpoint_every={run.every} and {run.steps_per_epoch} steps per epoch, "
        found += f"a checkpoint is due after step {due}. Wherever the run was killed, no "
        found += f"restart resumed there, only after steps {some(others, 20) or '0'}"
        code = "no-save-at-epoch-end" if is_epoch_end else "no-save-when-due"
        yield FINDINGS("not-the-newest" if due in written else code, found)


def reference_findings(run: Run, whole: RunStart, reference: Any) -> Iterator[Finding]:
    """A finding if the uninterrupted run's steps do not lead to the reference's weights."""
    difference, name = largest_difference(whole.weights[-1], reference)
    if not difference <= TOLERANCE:
        found = f"the weights after {counted(run.steps, 'step')} differ by up to "
        found += f"{difference:.2g}, in {name}, from those that AdamW gives in float64 on the "
        found += "mean loss of the same batches"
        yield FINDINGS("wrong-step", found)


def restart_findings(
    run: Run,
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
    at, saved, done = kill
    where = f"{at}; the next start, on {counted(len(start.ranks), 'rank')}, "
    for report, rank in zip(reports, start.ranks, strict=True):
        failure = report.failure
        if failure and not is_echo(report) and not rank.steps and not rank.end:
            found = f"{where}failed on rank {report.rank}: {failure.kind}: "
            found += shortened(failure.message, 160)
            finding = FINDINGS("cannot-resume", found)
            yield finding._replace(
                look=f"at {failure.where or 'the restore'}, and {finding.look[3:]}"
            )
            return
    taken = max(len(rank.steps) for rank in start.ranks)
    ends = [rank.end for rank in start.ranks if rank.end]
    is_right = not taken and all(end == whole.weights[-1] for end in ends)
    if done == run.steps and not is_right and (saved == run.steps or (ends and not taken)):
        found = f"{at}; started again, it took {counted(taken, 'step')}"
        if ends and (difference := largest_difference(whole.weights[-1], ends[-1])[0]):
            found += f", and its weights then differed by up to {difference:.2g} from those it "
            found += "had ended with"
        yield FINDINGS("finished-run-trains", found)
        return
    known = whole.began(start)
    if len(set(known)) > 1:
        said = ["after no step of the run" if p is None else f"after step {p}" for p in known]
        found = f"{where}began with the weights of different steps, by rank: {some(said)}"
        yield FINDINGS("ranks-resume-apart", found)
    elif known:
        yield from first_of(
            position_findings(whole, start, known[0], where, saved),
            sample_findings(run, whole, start, known[0] or 0, where),
            weight_findings(whole, start, known[0] or 0, where),
        )


def position_findings(
    whole: RunStart, start: RunStart, at: int | None, where: str, saved: int
) -> Iterator[Finding]:
    """A finding if it did not resume with the weights of a late enough step."""
    begins = start.steps[0].samples if start.steps else []
    if at == 0 < saved and (not begins or begins == whole.steps[0].samples):
        found = f"{where}began with the initial weights, although step {saved} was saved"
        yield FINDINGS("starts-over", found)
    elif at is None or at == 0 < saved:
        which = (
            "weights that the uninterrupted run never had" if at is None else "initial weights"
        )
        yield FINDINGS("not-the-same-run", f"{where}began with {which}")
    elif at < saved:
        found = f"{where}resumed after step {at}, although step {saved} was saved"
        yield FINDINGS("not-the-newest", found)


def sample_findings(
    run: Run, whole: RunStart, start: RunStart, at: int, where: str
) -> Iterator[Finding]:
    """A finding if the steps before the kill and those after it are not whole epochs."""
    shares = {
        number: whole.steps_with(number, first)
        for number, rank in enumerate(start.ranks)
        if rank.steps and (first := rank.steps[0].samples)
    }
    if shares and all(shares.values()) and not set.intersection(*shares.values()):
        said = [f"step {min(own) + 1} on rank {rank}" for rank, own in shares.items()]
        found = f"{where}had the weights after step {at}, and trained the samples of "
        yield FINDINGS("ranks-resume-apart", f"{found}{some(said)}")
        return
    lineage = [step.samples for step in (*whole.steps[:at], *start.steps)]
    extra, missing = miscounted(chain(*lineage), run.num_samples, run.epochs)
    if not all(rank.end for rank in start.ranks):
        missing = []  # it did not get to its end
    if extra or missing:
        codes = (
            ("never-trained", "epoch-skipped")
            if missing
            else ("trained-twice", "epoch-trained-again")
        )
        is_all = len(missing or extra) == run.num_samples
        found = f"{where}resumed after step {at}. Including the steps before it, "
        found += how_often([] if missing else extra, missing, run.num_samples, run.epochs)
        yield FINDINGS(codes[is_all], found)


def weight_findings(whole: RunStart, start: RunStart, at: int, where: str) -> Iterator[Finding]:
    """A finding at the first step that the uninterrupted run took otherwise."""
    for number, (ours, theirs) in enumerate(
        zip(start.steps, whole.steps[at:], strict=False), at + 1
    ):
        if ours.samples != theirs.samples:
            found = f"{where}trained samples {some(ours.samples)} in step {number}; the "
            found += f"uninterrupted run trained {some(theirs.samples)}"
            yield FINDINGS("not-the-same-run", found)
            return
        if ours.before != theirs.before:
            difference, name = largest_difference(ours.before, theirs.before)
            found = (
                f"{where}resumed after step {at}, with its weights; after step {number - 1} "
            )
            found += f"they differ by {difference:.2g}, in {name}, from the uninterrupted run's"
            yield FINDINGS("not-the-same-run", found)
            return
    for rank, own in enumerate(start.ranks):
        if own.end and own.end != whole.weights[-1]:
            found = (
                f"{where}ended with other weights than the uninterrupted run, on rank {rank}"
            )
            yield FINDINGS("not-the-same-run", found)
            return

"""Does a run that was killed and resumed equal the uninterrupted one, step by step?

It compares every step, as ``recorded_run`` reads it, and names the first that differs and why.
``steps`` and ``saves`` compare restarts by their samples and weights only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, is_echo, shortened
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.recorded_run import Step, UninterruptedRun, joined, start_in
from rehearsal.kit.judge.weights import largest_difference

SAME_RUN = "a resumed run equals the uninterrupted one, bit for bit"


def resume_findings(
    run: UninterruptedRun,
    reports: Sequence[RankReport],
    folder: str,
    kill: str,
    saved: int,
    done: int,
) -> Iterator[Finding]:
    """What is wrong with a start that should have resumed: at most one finding, the cause.

    Args:
        run: the same run without a kill.
        kill: how the previous start ended, as a clause: "the run was killed after step 3".
        saved: the step whose save was complete by then; the start resumes there or later.
        done: the steps that had been completed by then, on any rank.
    """
    yield from islice(_resume_findings(run, reports, folder, kill, saved, done), 1)


def _resume_findings(
    run: UninterruptedRun,
    reports: Sequence[RankReport],
    folder: str,
    kill: str,
    saved: int,
    done: int,
) -> Iterator[Finding]:
    starts = [start for report in reports if (start := start_in(report, folder))]
    if len(starts) < len(reports):
        return  # it did not get this far; another start is to blame
    taken = [[step for step in start.steps if step.after] for start in starts]
    failed = [report for report in reports if report.failure and not is_echo(report)]
    if failed and not any(taken) and not all(start.end for start in starts):
        report, failure = failed[0], failed[0].failure
        assert failure is not None
        yield Finding(
            "cannot-resume",
            f"{kill}; the next start failed on rank {report.rank} before it completed a step: "
            f"{failure.kind}: {shortened(failure.message.split('. ')[0], 160)}",
            "whenever a kill strikes, the next start finds a complete state",
            f"at {failure.where or 'the load'}, and at what the kill left in the folder",
        )
        return
    if not any(start.steps or start.end for start in starts):
        return  # it hung or exited before its first step: the engine says so
    firsts = [start.steps[0].before if start.steps else start.end for start in starts]
    at = [run.position(rank, weights) for rank, weights in enumerate(firsts)]
    samples = None
    if any(start.steps for start in starts):
        samples = joined(start.steps[0] for start in starts if start.steps)
    began = list(map(bool, firsts))
    yield from _position_findings(run, at, began, samples, kill, saved, done)
    if len(set(at)) > 1 or at[0] is None:
        return
    yield from _share_findings(run, taken, at[0], kill)
    yield from _order_findings(run, taken, at[0], kill)
    yield from _step_findings(run, taken, at[0], kill)
    last = at[0] + len(taken[0])
    if all(start.end for start in starts) and last != run.total:
        yield Finding(
            "stopped-short" if last < run.total else "keeps-training",
            f"{kill}; the next start resumed after step {at[0]} and took "
            f"{counted(len(taken[0]), 'step')}; the whole run has {run.total}",
            "all starts of a run together take the planned steps, no more and no fewer",
            "at the condition that ends the loop after a restore",
        )


def _position_findings(
    run: UninterruptedRun,
    at: Sequence[int | None],
    began: Sequence[bool],
    samples: Sequence[int] | None,
    kill: str,
    saved: int,
    done: int,
) -> Iterator[Finding]:
    """Whether all ranks began with the weights of one step, and a late enough one."""
    if len(set(at)) > 1:
        known = [f"after step {p}" if p is not None else "after no known step" for p in at]
        said = [
            f"rank {rank} {place if has_begun else 'took no step'}"
            for rank, (place, has_begun) in enumerate(zip(known, began, strict=True))
        ]
        apart = "began with weights from different steps"
        if not all(began):
            apart = "did not all begin with the weights of one step"
        yield Finding(
            "ranks-resume-apart",
            f"{kill}; the ranks then {apart}: {'; '.join(said)}",
            "all ranks resume from the same step",
            "at which ranks restore, and at what happens to the weights before the first step",
        )
    elif at[0] is None or (at[0] == 0 < saved and run.step_with(samples or [], 0) != 0):
        kind = "fresh weights" if at[0] == 0 else "weights that no step of the run had"
        if samples is None:
            found = f"{kill}; the next start took no step and returned with {kind}"
        else:
            found = f"{kill}; the next start began with {kind} and trained "
            found += f"samples {some(sorted(samples))}" if samples else "no sample"
        yield Finding(
            "weights-not-restored",
            found,
            "a start resumes with the weights of a completed step",
            "at what is loaded, and at what happens to it before the first step",
        )
    elif at[0] < saved == run.total:
        yield Finding(
            "keeps-training",
            f"{kill}; the next start resumed after step {at[0]} of {run.total}",
            "starting a finished run again takes no step",
            "at what the folder holds after the last step",
        )
    elif at[0] < saved:
        resumed, look = f"resumed after step {at[0]}", "at when the run saves, at what the "
        look += "folder holds at each moment of a save, and at which file a start takes as the "
        look += "newest"
        if not at[0]:
            resumed = "began at step 1, with the initial weights"
            look = "at what the folder holds at each moment of a save, and at what a start "
            look += "does with what it finds there"
        yield Finding(
            "lost-work" if at[0] else "started-over",
            f"{kill}. Step {done} was done by then, and the save due at step {saved} should "
            f"have been complete; the next start {resumed}",
            "a kill costs the steps since the last complete save, and no more",
            look,
        )
    elif at[0] > done:
        yield Finding(
            "from-the-future",
            f"{kill}. Step {done} was the last one done; the next start has the "
            f"weights after step {at[0]}",
            "a start knows only what earlier starts saved in its own folder",
            "at which folder is read",
        )


def _share_findings(
    run: UninterruptedRun, taken: Sequence[Sequence[Step]], at: int, kill: str
) -> Iterator[Finding]:
    """Whether all ranks began with their shares of one step."""
    firsts = [steps[0].samples for steps in taken if steps]
    if len(firsts) < len(run.ranks):
        return
    places: list[set[int]] = [
        {n for n, step in enumerate(rank) if step.samples == first}
        for rank, first in zip(run.ranks, firsts, strict=True)
    ]
    if all(places) and not set.intersection(*places):
        steps = [" or ".join(str(n + 1) for n in sorted(of)) for of in places]
        said = "; ".join(f"rank {rank} of step {step}" for rank, step in enumerate(steps))
        yield Finding(
            "ranks-resume-apart",
            f"{kill}; the next start resumed with the weights after step {at}, and the ranks "
            f"trained their shares of different steps: {said}",
            "all ranks resume from the same step",
            "at how each rank learns which step comes next",
        )


def _order_findings(
    run: UninterruptedRun, taken: Sequence[Sequence[Step]], at: int, kill: str
) -> Iterator[Finding]:
    """Whether the steps behind the restored weights, and those after, make whole epochs."""
    steps = [joined(ranks) for ranks in zip(*taken, strict=False)]
    if not steps:
        return
    start = f"{kill}; the next start resumed with the weights after step {at}"
    place = run.step_with(steps[0], near=at)
    if place is not None and place != at:
        again = place < at
        between = range(min(place, at), max(place, at))
        missed = {s for n in between for s in joined(rank[n] for rank in run.ranks)}
        yield Finding(
            "trained-twice" if again else "never-trained",
            f"{start} and the samples of step {place + 1}, so samples {some(sorted(missed))} "
            + ("are repeated" if again else "are skipped"),
            "even across a kill, each epoch trains each sample exactly once",
            "at how the loop knows its position in the epoch, and at when that is advanced",
        )
    elif place is None:
        before = [
            joined(ranks) for ranks in zip(*(rank[:at] for rank in run.ranks), strict=True)
        ]
        first = at // run.steps_per_epoch * run.steps_per_epoch
        epoch = (before + steps)[first : first + run.steps_per_epoch]
        counts = Counter(sample for step in epoch for sample in step)
        twice = sorted(sample for sample, count in counts.items() if count > 1)
        yield Finding(
            "different-samples",
            f"{start} and trained samples {some(sorted(steps[0]))}; no step of the "
            "uninterrupted run trains that set. Trained twice in this epoch: "
            f"{some(twice) or 'none'}",
            "a resumed epoch continues in the order in which it began",
            "at what an epoch's order is made from, and when",
        )


def _step_findings(
    run: UninterruptedRun, taken: Sequence[Sequence[Step]], at: int, kill: str
) -> Iterator[Finding]:
    """The first step that ends with different weights than the uninterrupted run's, and why."""
    for number, steps in enumerate(zip(*taken, strict=False), at):
        if number >= run.total:
            return
        pairs = [(step, rank[number]) for step, rank in zip(steps, run.ranks, strict=True)]
        if all(ours.after == whole.after for ours, whole in pairs):
            continue
        finding = _cause(
            pairs, f"{kill}; the next start resumed after step {at}. Step {number + 1}"
        )
        assert finding is not None
        yield finding
        return


def _cause(pairs: Sequence[tuple[Step, Step]], step: str) -> Finding | None:
    """Why a step ended with different weights than the same step of the uninterrupted run.

    Args:
        step: the subject of the sentence.
    """
    for rank, (ours, whole) in enumerate(pairs):
        if ours.samples != whole.samples:
            return Finding(
                "different-samples",
                f"{step} trained samples {some(ours.samples)} on rank {rank}, but "
                f"{some(whole.samples)} in the uninterrupted run",
                SAME_RUN,
                "at what an epoch's order is made from, and at each rank's share of a step",
            )
    for rank, (ours, whole) in enumerate(pairs):
        if ours.lr != whole.lr:
            return Finding(
                "lr-jumps",
                f"{step} used learning rate {ours.lr:.4g} on rank {rank}, but {whole.lr:.4g} "
                "in the uninterrupted run",
                "the learning rate continues as if nothing had happened",
                "at what decides the learning rate in the first steps after a restore, and at "
                "which ranks restore it",
            )
    for rank, (ours, whole) in enumerate(pairs):
        others = [other.rng for _, other in pairs if other.rng != whole.rng]
        if not ours.samples:
            continue  # a pass over no samples draws nothing
        if ours.rng and ours.rng in others:
            return Finding(
                "one-noise-for-all",
                f"{step} drew, on rank {rank}, the random numbers that another rank draws in "
                "the uninterrupted run",
                "each rank continues its own stream of random numbers",
                "at whose random state is saved, and at who loads it",
            )
        if ours.rng != whole.rng:
            return Finding(
                "different-noise",
                f"{step} drew different random numbers on rank {rank} than in the "
                "uninterrupted run, so its dropout differs",
                SAME_RUN,
                "at everything that draws random numbers between the start and that step",
            )
    for rank, (ours, whole) in enumerate(pairs):
        distance, name = largest_difference(ours.after, whole.after)
        if ours.after != whole.after:
            had, what = "weights, samples", "its update differs"
            if ours.before != whole.before:
                had, what = "samples", "the weights after it differ"
            return Finding(
                "different-update",
                f"{step} had the {had}, random numbers and learning rate of the uninterrupted "
                f"run, yet {what} by {distance:.2g} in {name} on rank {rank}",
                "an update also depends on state that earlier steps left behind",
                "at what besides the weights changes in a step",
            )
    return None

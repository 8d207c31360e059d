"""What judges of drills about resuming share: the steps taken, and where a start went on.

Plain data only; ``harness_resume.py`` has written it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import Weights, largest_difference, some
from rehearsal.grading.verdict import Finding, is_echo


class Step(NamedTuple):
    """One optimizer step of one rank. ``after`` is empty if the step was not completed."""

    samples: list[int]
    rng: str  # empty without a forward pass
    lr: float
    before: Weights
    after: Weights


class Start(NamedTuple):
    """What one rank did from one call of ``train`` to its end, or to the kill."""

    steps: list[Step]
    files: list[str]  # touched by it
    end: Weights  # empty if it did not return


def start_in(report: RankReport, folder: str) -> Start | None:
    """The last start in ``folder``; None if there was none."""
    begins = [i for i, e in enumerate(report.events) if e["kind"] == "start"]
    begins = [i for i in begins if report.events[i]["folder"] == folder]
    if not begins:
        return None
    steps: list[Step] = []
    files: list[str] = []
    samples: list[int] = []
    rng = ""
    for event in report.events[begins[-1] + 1 :]:
        kind = event["kind"]
        if kind == "start":
            break
        if kind == "end":
            return Start(steps, files, event["weights"])
        if kind == "file":
            files += filter(None, [event["path"]])
        elif kind == "forward":
            samples, rng = samples + event["samples"], rng or event["rng"]
        elif kind == "before_step":
            steps.append(Step(sorted(samples), rng, event["lr"], event["weights"], {}))
            samples, rng = [], ""
        elif kind == "stepped" and steps:
            steps[-1] = steps[-1]._replace(after=event["weights"])
    return Start(steps, files, {})


class Plan(NamedTuple):
    """The run as it goes when nobody kills it: each rank's steps."""

    ranks: list[list[Step]]
    num_samples: int
    steps_per_epoch: int

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return len(self.ranks[0])

    def position(self, rank: int, weights: Weights) -> int | None:
        """After how many steps ``rank`` had these weights; None if it never had."""
        steps = self.ranks[rank]
        had = [step.before for step in steps] + [steps[-1].after]
        return had.index(weights) if weights in had else None

    def reached(self, reports: Sequence[RankReport], folder: str) -> int:
        """After how many steps the last start in ``folder`` ended."""
        starts = [start_in(report, folder) for report in reports]
        last = [
            self.position(rank, start.steps[-1].after or start.steps[-1].before)
            for rank, start in enumerate(starts)
            if start and start.steps
        ]
        return max(place or 0 for place in [*last, 0])

    def step_with(self, samples: Iterable[int], near: int) -> int | None:
        """The step, from 0, that trains just these samples; the nearest of several."""
        wanted = sorted(samples)
        found = [
            number
            for number, steps in enumerate(zip(*self.ranks, strict=True))
            if sorted(joined(steps)) == wanted
        ]
        return min(found, key=lambda number: abs(number - near), default=None)


def joined(steps: Iterable[Step]) -> list[int]:
    """The samples of one step, of all ranks."""
    return [sample for step in steps for sample in step.samples]


def resume_findings(
    plan: Plan, reports: Sequence[RankReport], folder: str, kill: str, saved: int, done: int
) -> Iterator[Finding]:
    """What is wrong with a start that should have gone on: at most one finding, the cause.

    Args:
        kill: how the start before was ended, as a sentence has it.
        saved: the step whose save was complete by then; the start goes on there or later.
        done: the steps that had been completed by then, on any rank.
    """
    yield from islice(_resume_findings(plan, reports, folder, kill, saved, done), 1)


def _resume_findings(
    plan: Plan, reports: Sequence[RankReport], folder: str, kill: str, saved: int, done: int
) -> Iterator[Finding]:
    starts = [start for report in reports if (start := start_in(report, folder))]
    if len(starts) < len(reports):
        return  # it did not come so far: another start's matter
    taken = [[step for step in start.steps if step.after] for start in starts]
    failed = [report for report in reports if report.failure and not is_echo(report)]
    if failed and not any(taken) and not all(start.end for start in starts):
        report, failure = failed[0], failed[0].failure
        assert failure is not None
        yield Finding(
            "cannot-resume",
            f"{kill}, the next start failed on rank {report.rank} before its first step: "
            f"{failure.kind}: {failure.message.strip().splitlines()[0].split('. ')[0][:160]}",
            "whatever moment a kill strikes, the next start finds a complete state",
            f"at {failure.where or 'the load'}, and at what the kill had left in the folder",
        )
        return
    firsts = [start.steps[0].before if start.steps else start.end for start in starts]
    at = [plan.position(rank, weights) for rank, weights in enumerate(firsts)]
    samples = joined(start.steps[0] for start in starts if start.steps)
    yield from position_findings(plan, at, samples, kill, saved, done)
    if len(set(at)) > 1 or at[0] is None:
        return
    yield from lineage_findings(plan, taken, at[0], kill)
    yield from step_findings(plan, taken, at[0], kill)
    last = at[0] + len(taken[0])
    if all(start.end for start in starts) and last != plan.total:
        yield Finding(
            "stopped-short" if last < plan.total else "trains-on",
            f"{kill}, the next start went on after step {at[0]} and took {len(taken[0])} "
            f"steps; the whole run has {plan.total}",
            "the starts of a run together take the steps of the plan, no more and no fewer",
            "at the end of the loop after a restore",
        )


def position_findings(
    plan: Plan,
    at: Sequence[int | None],
    samples: Sequence[int],
    kill: str,
    saved: int,
    done: int,
) -> Iterator[Finding]:
    """Whether the ranks began with the weights of one step, and a late enough one."""
    late = "a kill costs the steps since the last complete save, and no more"
    if len(set(at)) > 1:
        said = [
            f"rank {rank} with "
            + (f"those after step {p}" if p is not None else "unknown ones")
            for rank, p in enumerate(at)
        ]
        yield Finding(
            "ranks-resume-apart",
            f"{kill}, the ranks began with weights of unlike age: {'; '.join(said)}",
            "all ranks go on from the same step",
            "at which ranks restore, and what happens to the weights between that and step one",
        )
    elif at[0] is None or (at[0] == 0 < saved and plan.step_with(samples, 0) != 0):
        trained = (
            f"and went on with samples {some(sorted(samples))}" if samples else "untrained"
        )
        yield Finding(
            "weights-not-restored",
            f"{kill}, the next start began with weights that are "
            f"{'fresh' if at[0] == 0 else 'of no step of the run'} {trained}",
            "a start goes on with the weights of a completed step",
            "at what is loaded, and at what happens to it before the first step",
        )
    elif at[0] < saved == plan.total:
        yield Finding(
            "trains-on",
            f"{kill}, the next start went on after step {at[0]} of {plan.total}",
            "a finished run that is started again takes no step",
            "at what the folder holds after the last step",
        )
    elif at[0] < saved:
        yield Finding(
            "lost-work" if at[0] else "started-over",
            f"{kill}, with step {done} done and the save of step {saved} complete, the next "
            f"start went on after step {at[0]}",
            late,
            "at when saves are made, and at what is in the folder at each moment of one",
        )
    elif at[0] > done:
        yield Finding(
            "from-the-future",
            f"{kill}, with step {done} done, the next start has the weights after step {at[0]}",
            "a start knows only what the starts before it in its folder have saved",
            "at which folder is read",
        )


def lineage_findings(
    plan: Plan, taken: Sequence[Sequence[Step]], at: int, kill: str
) -> Iterator[Finding]:
    """Whether the steps behind the restored weights, and those after, make whole epochs."""
    steps = [joined(ranks) for ranks in zip(*taken, strict=False)]
    if not steps:
        return
    start = f"{kill}, the start went on with the weights after step {at}"
    place = plan.step_with(steps[0], near=at)
    if place is not None and place != at:
        again = place < at
        between = range(min(place, at), max(place, at))
        missed = {s for n in between for s in joined(rank[n] for rank in plan.ranks)}
        yield Finding(
            "trained-twice" if again else "never-trained",
            f"{start} and with the samples of step {place + 1}: {some(sorted(missed))} are "
            + ("trained twice" if again else "never trained"),
            "over a kill, too, each epoch trains each sample exactly once",
            "at what tells the loop where in the epoch it stands, and when that is counted",
        )
    elif place is None:
        run = [joined(ranks) for ranks in zip(*(rank[:at] for rank in plan.ranks), strict=True)]
        first = at // plan.steps_per_epoch * plan.steps_per_epoch
        epoch = (run + steps)[first : first + plan.steps_per_epoch]
        counts = Counter(sample for step in epoch for sample in step)
        twice = sorted(sample for sample, count in counts.items() if count > 1)
        yield Finding(
            "other-samples",
            f"{start} and with samples {some(sorted(steps[0]))}, which no step of the "
            "uninterrupted run has together; trained twice in the epoch: "
            f"{some(twice) or 'none'}",
            "a resumed epoch goes on in the order in which it began",
            "at what the order of an epoch is made from, and when",
        )


def step_findings(
    plan: Plan, taken: Sequence[Sequence[Step]], at: int, kill: str
) -> Iterator[Finding]:
    """The first step that leaves other weights than in the uninterrupted run, and why."""
    for number, steps in enumerate(zip(*taken, strict=False), at):
        if number >= plan.total:
            return
        pairs = [(step, rank[number]) for step, rank in zip(steps, plan.ranks, strict=True)]
        if all(ours.after == whole.after for ours, whole in pairs):
            continue
        start = f"{kill}, the start went on after step {at}. Step {number + 1}"
        finding = cause(pairs, start)
        assert finding is not None
        yield finding
        return


def cause(pairs: Sequence[tuple[Step, Step]], start: str) -> Finding | None:
    """Why a step of the ranks, beside the uninterrupted one, ended elsewhere."""
    rule = "a resumed run is the uninterrupted one, bit for bit"
    for rank, (ours, whole) in enumerate(pairs):
        if ours.samples != whole.samples:
            found = f"{start} trained samples {some(ours.samples)} on rank {rank}, and "
            found += f"{some(whole.samples)} in the uninterrupted run"
            look = "at what the order of an epoch is made from, and at the ranks' shares"
            return Finding("other-samples", found, rule, look)
    for rank, (ours, whole) in enumerate(pairs):
        if ours.lr != whole.lr:
            return Finding(
                "lr-jumps",
                f"{start} used the learning rate {ours.lr:.4g} on rank {rank}, and "
                f"{whole.lr:.4g} in the uninterrupted run",
                "the learning rate goes on as if nobody had killed the run",
                "at what decides the learning rate, in the first steps after a restore",
            )
    for rank, (ours, whole) in enumerate(pairs):
        others = [other.rng for _, other in pairs if other.rng != whole.rng]
        if ours.rng and ours.rng in others:
            return Finding(
                "one-noise-for-all",
                f"{start} drew on rank {rank} the random numbers that another rank draws in "
                "the uninterrupted run",
                "each rank goes on with its own random numbers",
                "at whose random state is saved, and who loads it",
            )
        if ours.rng != whole.rng:
            found = (
                f"{start} drew other random numbers on rank {rank} than in the uninterrupted "
            )
            found += "run: its dropout mask differs"
            look = "at all that draws random numbers between the start and that step"
            return Finding("other-noise", found, rule, look)
    for rank, (ours, whole) in enumerate(pairs):
        distance, name = largest_difference(ours.after, whole.after)
        if ours.after != whole.after:
            return Finding(
                "other-update",
                f"{start} had the weights, samples, random numbers and learning rate of the "
                f"uninterrupted run, and ended {distance:.2g} away from it in {name} on rank "
                f"{rank}",
                "what a step does depends also on what the steps before it have left behind",
                "at what besides the weights changes in a step",
            )
    return None

"""Does each start after a kill continue the uninterrupted run, even on a different world size?

Read from what ``observe.saves`` records. ``steps`` compares the steps; this module tells it
which step a start resumed after, and which steps it might have resumed after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.coverage import samples_by_step
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.steps import (
    RESUMED,
    Steps,
    epoch_coverage,
    failed_restart,
    resumption_findings,
    starts_of,
    states_of,
    weights_by_step,
)

FINDINGS = FindingTable(
    {
        "same-order": (
            "two epochs have the same order, or one isn't shuffled",
            "each epoch has its own shuffled order",
            "at what an epoch's order is made from",
        ),
        "no-save-when-due": (
            "no checkpoint is saved after checkpoint_every steps",
            "a checkpoint is saved whenever one is due",
            "at when a checkpoint is saved, and at what is counted until then",
        ),
        "saves-too-often": (
            "a checkpoint is saved although none is due",
            "a checkpoint is saved only when one is due",
            "at when a checkpoint is saved, and at what is counted until then",
        ),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun(Steps):
    """A run whose steps have ``global_batch_size`` samples; an epoch's last has the rest."""

    world_size: int
    global_batch_size: int
    lr: float
    saves_epochs: bool = False  # a checkpoint is due at each epoch's end, too

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``train`` is called with, by name."""
        return {
            "epochs": self.epochs,
            "global_batch_size": self.global_batch_size,
            "checkpoint_every": self.every,
            "lr": self.lr,
        }

    def dues(self) -> list[int]:
        """The steps after which a checkpoint is due."""
        ends = self.steps_per_epoch if self.saves_epochs else self.every
        steps = range(1, self.total + 1)
        return [step for step in steps if step % self.every == 0 or step % ends == 0]

    def size_of(self, step: int) -> int:
        """Samples of a step, counted from 0, on all ranks together."""
        first = step % self.steps_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self.num_samples - first)


class Kill(NamedTuple):
    """How a start ended, and what the next one may find."""

    how: str
    saved: int  # the step whose checkpoint must be complete
    done: int  # the last step of the run that may have been saved
    wrote: frozenset[int] = frozenset()  # the steps after which files were written


# ---------------------------------------------------------------- an uninterrupted run


def wrong_sizes(run: SavedRun, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a step has more or fewer samples than planned."""
    for number, samples in enumerate(samples_by_step(reports)):
        if len(samples) != run.size_of(number):
            found = f"on {counted(len(reports), 'rank')}, without a restart, step {number + 1} "
            found += f"trained {counted(len(samples), 'sample')}; with "
            found += f"global_batch_size={run.global_batch_size} it should train "
            found += f"{run.size_of(number)} of the epoch's {run.num_samples}"
            rule = "a step trains the next global_batch_size samples of its epoch"
            look = "at how an epoch is cut into batches, and each of them among the ranks"
            yield Finding("not-all-steps", found, rule, look)
            return


def repeated_order(run: SavedRun, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if an epoch is in index order, or in that of an earlier epoch."""
    steps, length = samples_by_step(reports), run.steps_per_epoch
    indices = range(run.num_samples)
    size = run.global_batch_size
    seen = [[[*indices[at : at + size]] for at in indices[::size]]]
    for epoch in range(run.epochs):
        own = steps[epoch * length : (epoch + 1) * length]
        if own in seen:
            same = seen.index(own)
            found = f"without a restart, epoch {epoch} trained "
            if same:
                found += f"the same batches as epoch {same - 1}, in the same order"
            else:
                found += "its batches in index order, unshuffled"
            yield FINDINGS("same-order", found)
            return
        seen.append(own)


# ---------------------------------------------------------------- restarts


def saved_by(run: Steps, start: Sequence[RankReport], done: int) -> int:
    """The step whose checkpoint must be complete once ``done`` steps of a run are.

    Args:
        start: of the run, with the event "saved" if it was watched.
    """
    in_thread = any(event["in_thread"] for report in start for event in report.of("saved"))
    newest = run.newest(done)
    return run.newest(newest - 1) if in_thread else newest  # it may still be writing


def ended_start(reports: Sequence[RankReport], folder: str) -> list[RankReport]:
    """The start in ``folder``, of a job that makes several; none if a rank didn't end it."""
    starts = [own[folder] for report in reports if folder in (own := starts_of(report))]
    has_ended = len(starts) == len(reports) and all(start.answer for start in starts)
    return starts if has_ended else []


def killed_after(
    run: Steps, whole: Sequence[RankReport], done: int, who: str = "all ranks were"
) -> Kill:
    """A kill between two steps of a run whose saves are those of ``whole``."""
    how = f"{who} killed after step {done}"
    return Kill(how, saved_by(run, whole, done), done, wrote(whole, 0))


def wrote(start: Sequence[RankReport], at: int) -> frozenset[int]:
    """The steps of a run after which a start wrote files; it resumed after ``at`` steps."""
    saved = [event["steps"] for report in start for event in report.of("saved")]
    return frozenset(at + step for steps in saved for step in steps)


def kills_in_saves(
    run: Steps, start: Sequence[RankReport], at: int = 0, before: Kill | None = None
) -> list[tuple[str, Kill]]:
    """The folder and the kill of each moment that ``observe.saves`` has kept of a start.

    Args:
        at: the steps of the run that were done when the start resumed.
        before: how the start before it had ended; None if it was the first.
    """
    who, known = "all ranks were killed", frozenset[int]()
    if before is not None:
        who = f"{before.how}; the restart was killed, too,"
        known = frozenset(step for step in before.wrote if step <= at)
    kills = []
    for report in start:
        for event in report.of("kept"):
            done = at + event["steps"]
            # In the middle of a save, only the one before it must be complete.
            saved = max(at, saved_by(run, start, done - (not event["is_after"])))
            how = f"{who} {event['where']}, after step {done}"
            if not done:
                how = f"{who} {event['where']}, before step 1"
            kills.append((event["folder"], Kill(how, saved, done, known | wrote(start, at))))
    return kills


def first_wrong_start(
    run: Steps,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    kills: Iterable[tuple[str, Kill]],
    judge_start: Callable[[Sequence[RankReport], Kill], Iterable[Finding]],
) -> Iterator[Finding]:
    """The findings of the first start that is wrong, of a job that makes several.

    Args:
        whole: the uninterrupted run, ``aligned``.
        kills: for each start its folder, and how the previous start in it ended. Those after
            kills in the saves of these starts follow them.
        judge_start: given the start's reports, ``aligned``, and the kill.
    """
    by_rank, states = [starts_of(report) for report in reports], states_of(whole)
    queue = [*kills]
    for folder, kill in queue:
        starts = [own[folder] for own in by_rank if folder in own]
        if len(starts) < len(reports):
            return  # the engine says why
        if len(starts) != len(whole):
            kill = kill._replace(
                how=f"{kill.how}, and started again on {counted(len(starts), 'rank')}"
            )
        has_ended = all(start.answer for start in starts)
        starts = aligned(starts, states, run.tolerance)
        findings = list(
            first_of(
                judge_start(starts, kill),
                () if has_ended else failed_restart(reports, kill.how),
            )
        )
        yield from findings[:1]
        if findings or not has_ended:
            return
        queue += kills_in_saves(run, starts, resumed_after(whole, starts) or 0, kill)


def start_resumes(
    run: Steps,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    kill: Kill,
    look: str,
) -> Iterator[Finding]:
    """What is wrong with a start that must resume from a step after which a save was due."""
    dues = [step for step in (0, *run.dues()) if kill.saved <= step <= kill.done]
    yield from resumption_findings(run, whole, reports, dues[::-1], kill.how, look)


def start_after_kill(
    run: SavedRun,
    whole: Sequence[RankReport],
    reports: Sequence[RankReport],
    kill: Kill,
    look: str,
) -> Iterator[Finding]:
    """What is wrong with a start after a kill at any moment; both runs are ``aligned``.

    Args:
        look: where to look if samples are repeated or skipped.
    """
    at = resumed_after(whole, reports)
    if at is None or at >= kill.saved:
        allowed = [kill.saved if at is None else min(at, kill.done)]
        taken = samples_by_step(whole)[:at] + samples_by_step(reports)
        where = f"{kill.how}; the next start took no step after step {at}, so "
        yield from first_of(
            epoch_coverage(run, taken, where, look) if len(taken) == at else (),
            resumption_findings(run, whole, reports, allowed, kill.how, look),
            needless_save(run, at or 0, kill),
        )
        return
    began = f"{kill.how}; the next start began with the weights after step {at}"
    if at == 0:
        began = f"{kill.how}; the next start began with the initial weights"
    due = next(due for due in run.dues() if due > at)
    if due in kill.wrote:
        found = f"{began}, although the checkpoint of step {kill.saved} was complete"
        yield RESUMED("not-the-newest" if at else "starts-over", found)
    else:
        found = f"{began}. With checkpoint_every={run.every} and {run.steps_per_epoch} steps "
        found += f"per epoch, a checkpoint is due after step {due}; no file was written then"
        yield FINDINGS("no-save-when-due", found)


def needless_save(run: SavedRun, at: int, kill: Kill) -> Iterator[Finding]:
    """A finding if a start resumed from a step after which no checkpoint is due."""
    if at in (0, *run.dues()):
        return
    found = f"{kill.how}; the next start began with the weights after step {at}. With "
    found += f"checkpoint_every={run.every} and {run.steps_per_epoch} steps per epoch, "
    missing = [due for due in run.dues() if due < at and due not in kill.wrote]
    if missing:
        found += f"others are due, such as after step {missing[0]}, when no file was written"
        yield FINDINGS("no-save-when-due", found)
    else:
        yield FINDINGS("saves-too-often", f"{found}no checkpoint is due then")


def resumed_after(whole: Sequence[RankReport], reports: Sequence[RankReport]) -> int | None:
    """The step with whose weights all ranks began; None if there is none."""
    states = states_of(whole)
    begun = [own[0] for report in reports if (own := weights_by_step(report))]
    first = begun or [report.answer["weights"] for report in reports if report.answer]
    is_one = bool(first) and all(own == first[0] for own in first)
    return states.index(first[0]) if is_one and first[0] in states else None

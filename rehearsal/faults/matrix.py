"""What a try of a fault comes to, how it is judged, and the table of all of them.

A group (``points.py``, ``corruption.py``, ...) is a function from a ``Bench`` to tries: it
breaks something in a run, starts the run again as its user would, and has ``Bench.judge`` say
what the run folder and the weights show.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rehearsal.evidence.audit import audit_run, read_ledger


class Try(NamedTuple):
    """One fault, one run that met it."""

    fault: str  # the row of the table
    what: str  # this try: "SIGKILL before rename 3 of rank 0", for whoever repeats it
    problem: str = ""  # why it did not survive; empty if it did
    lost: int = 0  # samples of the lineage that were never trained
    repeated: int = 0  # ... and that were trained more than once in an epoch
    replayed_steps: int = 0
    restart_s: float | None = None  # from the fault to the first new step, if there was one
    skipped: str = ""  # why this system does not let it be tried; then nothing else is said


Group = Callable[["Bench"], Iterable[Try]]


@dataclass(slots=True)
class Bench:
    """Where the runs of a matrix lie, and what they are compared with.

    Args:
        root: an empty folder; each try makes its own in it and removes it if it survived.
        quick: a few tries of each kind, for CI.
    """

    root: Path
    seed: int
    quick: bool
    references: dict[Any, Any] = field(default_factory=dict)  # of undisturbed runs, by plan

    def rng(self, name: str) -> random.Random:
        """A random stream of a group's own, so that ``--only`` changes no other choice."""
        return random.Random(f"{self.seed}/{name}")

    def judge(
        self,
        fault: str,
        what: str,
        run_dir: Path,
        *,
        equal: bool,
        restart_s: float | None = None,
        problem: str = "",
    ) -> Try:
        """The try of a run that has been brought to its end: the audit, then the weights.

        Args:
            equal: whether the last weights are those of the undisturbed run (bit for bit at the
                same world size, else within tolerance).
            problem: what has gone wrong already, such as an exit code.
        """
        report = audit_run(run_dir)
        if not problem and report.status != "proved":
            problem = f"audit: {report.status}: {report.verdict}"
        if not problem and report.steps != report.total_steps:
            problem = f"ended at step {report.steps} of {report.total_steps}"
        if not problem and not equal:
            problem = "other weights than the undisturbed run's"
        return Try(
            fault,
            what,
            problem,
            report.misses,
            report.duplicates,
            report.replayed_steps,
            restart_s,
        )

    def put_away(self, run_dir: Path, result: Try) -> Try:
        """Like ``leave``, for a folder whose name the next try needs."""
        if not result.problem:
            shutil.rmtree(run_dir)
            return result
        kept = self.root / "not-survived"
        kept.mkdir(exist_ok=True)
        folder = run_dir.rename(kept / f"{run_dir.parent.name}-{len(list(kept.iterdir()))}")
        return result._replace(problem=f"{result.problem}; the run folder is {folder}")


def leave(folder: Path, result: Try) -> Try:
    """Remove a try's own folder if it was survived; else keep it where it is, and say where."""
    if not result.problem:
        shutil.rmtree(folder)
        return result
    return result._replace(problem=f"{result.problem}; the run folder is in {folder}")


def first_new_step_at(run_dir: Path, attempt: int) -> float | None:
    """Unix seconds at which an attempt's first step of rank 0 was complete."""
    lines = read_ledger(run_dir).get(attempt, {})
    times = [line.time for step in lines.values() for line in step if line.rank == 0]
    return min(times, default=None)


class Row(NamedTuple):
    """All tries of one fault."""

    fault: str
    tries: int
    survived: int
    lost: int
    repeated: int
    replayed_steps: int
    restart_s: float | None  # median
    skipped: int = 0  # not among the tries


def rows_of(tries: Sequence[Try]) -> list[Row]:
    """The table, in the order in which the faults came first."""
    rows = []
    for fault in dict.fromkeys(each.fault for each in tries):
        all_of_it = [each for each in tries if each.fault == fault]
        own = [each for each in all_of_it if not each.skipped]
        times = [each.restart_s for each in own if each.restart_s is not None]
        rows.append(
            Row(
                fault,
                len(own),
                sum(not each.problem for each in own),
                sum(each.lost for each in own),
                sum(each.repeated for each in own),
                sum(each.replayed_steps for each in own),
                median(times) if times else None,
                len(all_of_it) - len(own),
            )
        )
    return rows

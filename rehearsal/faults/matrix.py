"""One try of a fault, how it is judged, and the table of all tries.

A fault group is a function from a ``Bench`` to tries. It breaks something in a run, starts the
run again as its user would, and lets ``Bench.judge`` read the run folder and the weights:

    def lose_power(bench: Bench) -> Iterator[Try]:
        for step in (3, 7):
            folder = bench.folder("power")
            cfg, problem = small(folder / "run", **ONE_EPOCH), ""
            try:
                start(cfg, 2, partial(kill, rank=0, step=step))
                problem = problem_of(start(cfg, 2))
            except Hang as hang:
                problem = str(hang)
            result = bench.judge(
                "power loss",
                f"rank 0, step {step}",
                cfg.run_dir,
                equal=same_weights(cfg.run_dir, bench.reference(cfg, 2)),
                problem=problem,
            )
            yield leave(folder, result)

``registry.py`` lists the groups; scripts/faults.py runs them.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from rehearsal.engine.programs import Prepare
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_ledger
from rehearsal.faults.jobs import SIX_STEPS, Settings, in_folder, problem_of, small, start
from trainer_core.checkpoint_format import published_steps, verify


class Try(NamedTuple):
    """One fault that struck one run."""

    fault: str  # the row of the table
    what: str  # this try, precisely enough to repeat it: "SIGKILL before rename 3 of rank 0"
    problem: str = ""  # why the run did not survive; "" if it did
    lost: int = 0  # samples of the lineage that were never trained
    repeated: int = 0  # samples of the lineage that were trained more than once in an epoch
    replayed_steps: int = 0
    restart_s: float | None = None  # from the fault to the first new step, if there was one
    skipped: str = ""  # why this system cannot try it; then nothing else is set


Group = Callable[["Bench"], Iterable[Try]]


@dataclass(slots=True)
class Bench:
    """Where the runs of a matrix live, and what they are compared with.

    Args:
        root: an empty folder; each try makes its own in it, and removes it if the run survived.
        quick: a few tries of each kind, for CI.
    """

    root: Path
    seed: int
    quick: bool
    references: dict[Any, Path] = field(default_factory=dict)  # uninterrupted runs

    def rng(self, name: str) -> random.Random:
        """A random stream for one group, so that ``--only`` leaves its choices as they are."""
        return random.Random(f"{self.seed}/{name}")

    def folder(self, name: str) -> Path:
        """An empty folder for one try."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))

    def reference(self, cfg: Settings, world_size: int, prepare: Prepare | None = None) -> Path:
        """The run folder of an uninterrupted run of ``cfg``; trained once for each.

        Args:
            prepare: what is broken in this run as well, such as a poisoned sample.
        """
        run_dir = self.root / f"reference-{len(self.references)}"
        key = (world_size, repr(in_folder(cfg, Path("anywhere"))), repr(prepare))
        if key not in self.references:
            if problem := problem_of(start(in_folder(cfg, run_dir), world_size, prepare)):
                raise RuntimeError(f"the uninterrupted run failed: {problem}")
            self.references[key] = run_dir
        return self.references[key]

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
        """Judge a run that was brought to its end: audit first, then weights.

        Args:
            equal: whether the last weights are those of the uninterrupted run (bit-identical at
                the same world size, otherwise within tolerance).
            problem: what has gone wrong already, such as an exit code.
        """
        report = audit_run(run_dir)
        if not problem and report.status != "proved":
            problem = f"audit: {report.status}: {report.verdict}"
        if not problem and report.steps != report.total_steps:
            problem = f"ended at step {report.steps} of {report.total_steps}"
        if not problem and not equal:
            problem = "its weights differ from the uninterrupted run's"
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
    """Remove a try's folder if the run survived; otherwise keep it and say where it is."""
    if not result.problem:
        shutil.rmtree(folder)
        return result
    return result._replace(problem=f"{result.problem}; the run folder is in {folder}")


# ---------------------------------------------------------------- whose run it is


class Trainer(NamedTuple):
    """What the groups need to know of a trainer; ``live.py`` here has the other one's."""

    small: Callable[..., Settings] = small  # a config for a short run in a folder
    six_steps: dict[str, Any] = SIX_STEPS
    verify: Callable[[Path], object] = verify  # raises if a published checkpoint is damaged


HARDENED = Trainer()


# ---------------------------------------------------------------- what a run has left


def last_state(run_dir: Path) -> dict[str, Any]:
    """The content of the newest checkpoint's state.pt; {} if there is no checkpoint."""
    newest = next(iter(published_steps(run_dir / "checkpoints").values()), None)
    if newest is None:
        return {}
    state: dict[str, Any] = torch.load(newest / "state.pt", weights_only=True)
    return state


def same_weights(run_dir: Path, other: Path, *, exactly: bool = True) -> bool:
    """Whether the newest checkpoints of two runs hold the same step's weights."""
    ours, theirs = last_state(run_dir), last_state(other)
    if not ours or ours.get("step") != theirs.get("step"):
        return False
    pairs = [(tensor, theirs["model"][name]) for name, tensor in ours["model"].items()]
    if exactly:
        return all(torch.equal(one, two) for one, two in pairs)
    # A different world size sums in a different order: the last bits may differ.
    return all(torch.allclose(one, two, rtol=1e-4, atol=1e-5) for one, two in pairs)


def snapshot(folder: Path, *, ignore: str = "") -> dict[str, bytes | str | None]:
    """Every file's content, every link's target and every folder, by path.

    Args:
        ignore: files of this name are left out.
    """
    found: dict[str, bytes | str | None] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.name != ignore:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def first_new_step_at(run_dir: Path, attempt: int) -> float | None:
    """When an attempt's first step on rank 0 was complete, in Unix seconds."""
    lines = read_ledger(run_dir).get(attempt, {})
    times = [line.time for step in lines.values() for line in step if line.rank == 0]
    return min(times, default=None)


# ---------------------------------------------------------------- the table


class Row(NamedTuple):
    """All tries of one fault."""

    fault: str
    tries: int
    survived: int
    lost: int
    repeated: int
    replayed_steps: int
    restart_s: float | None  # median
    skipped: int = 0  # not counted in tries


def rows_of(tries: Sequence[Try]) -> list[Row]:
    """The table, in the order in which each fault was first tried."""
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

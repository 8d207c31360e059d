"""A SIGKILL before and after every system call that touches a file of the run folder.

``tracer.py`` finds the calls by tracing an uninterrupted run, so a call that somebody adds to
the trainer becomes a new point here, if it is in the tracer's CALLS. Rank 0 is killed, because
it writes the checkpoints. Ranks are forked: a restart on a real machine also takes the seconds
of importing torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import is_rank
from rehearsal.faults.jobs import Hang, Settings, problem_of, start
from rehearsal.faults.matrix import (
    HARDENED,
    Bench,
    Trainer,
    Try,
    first_new_step_at,
    same_weights,
)
from rehearsal.faults.tracer import Kill, Point, read_trace, trace_this_rank, why_not
from trainer_core.checkpoint_format import DamagedCheckpoint, published_steps
from trainer_core.settings import UserError

QUICK_KILLS = 3  # of each plan
EVIDENCE = ("logs", "ledger", "traces")


class Plan(NamedTuple):
    """One kind of run that is killed at each of its points."""

    fault: str
    world_size: int
    settings: dict[str, Any]
    is_resumed: bool = False  # the points are those of a restart, up to its first save
    has_evidence: bool = False  # includes the points of the ledger, the logs and the trace
    trainer: Trainer = HARDENED
    # Whether every rank waits for the last save: if not, one may have exited before the kill.
    ends_together: bool = True

    def config(self, run_dir: Path) -> Settings:
        """The run in a folder."""
        return self.trainer.small(run_dir, **{**self.trainer.six_steps, **self.settings})


# With 2 ranks a run takes twice as long: only steps 3 and 6 are saved, and 3 is deleted.
TWO_SAVES = {"checkpoint_every_steps": 3}
PLANS = [
    Plan("kill in a save, 1 rank", 1, {}, has_evidence=True),
    Plan("kill in an async save, 1 rank", 1, {"async_checkpoint": True}),
    Plan("kill in a save, 2 ranks", 2, TWO_SAVES),
    Plan("kill in an async save, 2 ranks", 2, {**TWO_SAVES, "async_checkpoint": True}),
    Plan("kill in a restore, 1 rank", 1, {}, is_resumed=True),
    Plan("kill in a restore, 2 ranks", 2, {}, is_resumed=True),
]


def trace_rank_0(run_dir: Path, log: Path, kill: Kill | None) -> None:
    """Trace this process if it is rank 0; the ``prepare`` of a job."""
    if is_rank(0):
        trace_this_rank(run_dir, log, kill)


def start_traced(
    plan: Plan, run_dir: Path, kill: Kill | None = None
) -> tuple[list[RankReport], list[Point], float | None]:
    """Start a run with rank 0 traced: how the ranks ended, the points, when it was killed."""
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir.with_name(f"{run_dir.name}.trace")
    prepare = partial(trace_rank_0, run_dir, log, kill)
    reports = start(plan.config(run_dir), plan.world_size, prepare)
    return reports, *read_trace(log)


def points_of(plan: Plan, run_dir: Path) -> list[Point]:
    """The points of an uninterrupted run of a plan, in order."""
    reports, points, _ = start_traced(plan, run_dir)
    assert not problem_of(reports), problem_of(reports)
    if plan.is_resumed:
        first_save = next(p for p in points if p[:2] == ("mkdir", "checkpoints/tmp-*"))
        points = points[: points.index(first_save)]
    return [p for p in points if plan.has_evidence or not p.path.startswith(EVIDENCE)]


def leave_behind(plan: Plan, run_dir: Path) -> None:
    """Make the folder that gives a restart the most to do, as kills and a bad disk leave it.

    An unfinished save, a checkpoint that is being deleted, and a newest one that is damaged.
    """
    cut = Kill("before", Point("write", "checkpoints/tmp-*/manifest.json", 3))
    keeps_all = plan._replace(settings={**plan.settings, "keep_last": 9})
    _, _, killed = start_traced(keeps_all, run_dir, cut)
    assert killed is not None, "the run ended before its third save"
    checkpoints = run_dir / "checkpoints"
    older, newest = checkpoints / "step-00000003", checkpoints / "step-00000004"
    shutil.copytree(older, checkpoints / "old-step-00000002-0123abcd")
    with (newest / "state.pt").open("r+b") as file:
        file.truncate(100)


def wrong_leavings(plan: Plan, run_dir: Path, damaged: tuple[int, ...]) -> str:
    """What a kill must not leave behind: a torn checkpoint, or none as new as the last save.

    Args:
        damaged: steps whose checkpoints were bad before.
    """
    published = published_steps(run_dir / "checkpoints")
    for step, folder in published.items():
        try:
            if step not in damaged:
                plan.trainer.verify(folder)
        except (DamagedCheckpoint, UserError) as error:
            return f"{folder.name} was published but fails verification: {error}"
    log = run_dir / "logs" / "rank-0.jsonl"
    events = read_jsonl(log) if log.exists() else ()
    saved = {int(event["step"]) for event in events if event["event"] == "checkpoint_saved"}
    newest = max(saved.difference(damaged), default=0)
    if newest > max(set(published).difference(damaged), default=0):
        return f"step {newest} was saved, but no checkpoint of it or of a later step is left"
    return ""


def wrong_survivor(reports: list[RankReport]) -> str:
    """Which rank claims that the run has ended although rank 0 was killed; "" if none does."""
    for report in reports[1:]:
        if report.exitcode == 0 or report.has_answer:
            return f"rank {report.rank} claims success, although rank 0 was killed"
    return ""


def kill_and_resume(bench: Bench, plan: Plan, template: Path | None, kill: Kill) -> Try:
    """Kill the run once, start it again, and judge how it ends."""
    run_dir = bench.root / "points" / "run"
    if template is not None:
        shutil.copytree(template, run_dir)
    killed = None
    try:
        reports, _, killed = start_traced(plan, run_dir, kill)
        problem = wrong_leavings(plan, run_dir, (4,) if plan.is_resumed else ())
        if killed is None:
            problem = problem or "the run never came to this point, so nothing was tried"
        if plan.ends_together:
            problem = problem or wrong_survivor(reports)
        problem = problem or problem_of(start(plan.config(run_dir), plan.world_size))
    except Hang as hang:
        problem = str(hang)
    reference = bench.reference(plan._replace(settings={}).config(run_dir), plan.world_size)
    result = bench.judge(
        plan.fault,
        f"SIGKILL {kill.moment} {kill.point}",
        run_dir,
        equal=same_weights(run_dir, reference),
        restart_s=seconds_to_first_step(run_dir, killed),
        problem=problem,
    )
    run_dir.with_name("run.trace").unlink(missing_ok=True)
    return bench.put_away(run_dir, result)


def seconds_to_first_step(run_dir: Path, killed: float | None) -> float | None:
    """From the kill to a later attempt's first step; None if no step was left to train."""
    times = [first_new_step_at(run_dir, attempt) for attempt in range(4)]
    later = [time for time in times if time and killed and time > killed]
    return min(later) - killed if later and killed else None


def kill_at_each_point(bench: Bench, plans: Sequence[Plan] = PLANS) -> Iterator[Try]:
    """The group: each plan is traced once, then killed before and after each of its points."""
    folder = bench.root / "points"
    if folder.exists():
        shutil.rmtree(folder)  # the other trainer's
    (folder / "trial").mkdir(parents=True)
    if reason := why_not(folder / "trial"):
        yield from (Try(plan.fault, "all points", skipped=reason) for plan in plans)
        return
    for number, plan in enumerate(plans):
        template = None
        if plan.is_resumed:
            template = folder / f"template-{number}"
            leave_behind(plan, template)
            template.with_name(f"{template.name}.trace").unlink()
            shutil.copytree(template, folder / f"traced-{number}")
        points = points_of(plan, folder / f"traced-{number}")
        kills = [Kill(m, point) for point in points for m in ("before", "after")]
        if bench.quick:
            kills = bench.rng(plan.fault).sample(kills, QUICK_KILLS)
        for kill in kills:
            yield kill_and_resume(bench, plan, template, kill)

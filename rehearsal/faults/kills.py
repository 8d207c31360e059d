"""Random kills under torchrun: a rank, a loader worker, all ranks together, torchrun itself.

Two ranks have two loader workers each. A run is killed about twenty times, often several times
in one epoch, sometimes during start-up or shutdown. Torchrun restarts it; if torchrun itself
was killed, the same command is started again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.engine.processes import children_of, describe
from rehearsal.evidence.run_records import read_ledger
from rehearsal.faults.jobs import ONE_EPOCH, Hang
from rehearsal.faults.matrix import (
    HARDENED,
    Bench,
    Trainer,
    Try,
    first_new_step_at,
    leave,
    same_weights,
)
from rehearsal.faults.torchrun import Torchrun

PLAN: dict[str, Any] = {
    **ONE_EPOCH,
    "dataset_size": 1603,  # 101 steps an epoch
    "max_epochs": 6,
    "num_workers": 2,
    "checkpoint_every_steps": 10,
    "log_every": 5,
    # Longer than the deadline here: a start that waits for a dead peer hangs, it is not slow.
    "dist_timeout_s": 300.0,
}
SAMPLES_PER_STEP = 16  # of ``small`` with two ranks


class Kill(NamedTuple):
    """One kill that was made."""

    fault: str
    what: str
    at: float  # Unix seconds
    attempt: int  # the newest one when it happened
    problem: str = ""


def choose(job: Torchrun, rng: random.Random, victim: str) -> list[int]:
    """The processes that a kill of ``victim`` hits; none if they are gone already."""
    ranks = job.ranks()
    if victim == "torchrun":
        return [job.agent.pid]
    if victim == "the machine":
        return [job.agent.pid, *ranks]
    if victim == "all ranks" or not ranks:
        return ranks
    rank = rng.choice(ranks)
    if victim == "a loader worker":
        workers = children_of(rank)
        return [rng.choice(workers)] if workers else []
    return [rank]


class Killer:
    """Kills one run several times and lets it recover in between."""

    def __init__(self, job: Torchrun, rng: random.Random, total_steps: int) -> None:
        self.job, self.rng, self.total_steps = job, rng, total_steps
        self.kills: list[Kill] = []
        self.seen: set[int] = set()  # ranks of earlier starts
        self.attempt = -1  # the newest one at the last kill

    def is_new_start(self) -> bool:
        """Whether all ranks of the next start exist."""
        ranks = self.job.ranks()
        return len(ranks) == self.job.world_size and not self.seen & set(ranks)

    def is_training(self) -> bool:
        """Whether the start after the last kill has trained a step."""
        return self.job.place()[0] > self.attempt

    def while_training(self, victim: str) -> bool:
        """Kill some steps after the first new one; False if the run ended before."""
        job, steps = self.job, self.rng.randrange(25)
        if not job.until(self.is_training, "a new step"):
            return False
        target = job.place()[1] + steps
        if not job.until(lambda: job.place()[1] >= target, f"step {target}"):
            return False
        time.sleep(self.rng.uniform(0, 0.02))
        return self.kill(victim, "while training")

    def during_start_up(self, victim: str) -> bool:
        """Kill before the first step; False if the run ended before."""
        # Importing torch takes two of these seconds, the rendezvous most of the rest. A forked
        # rank has imported it.
        delay_s = self.rng.uniform(0, 0.6 if self.job.forks else 4)
        if not self.job.until(self.is_new_start, "new ranks"):
            return False
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline and not self.is_training():
            time.sleep(0.01)
        return self.kill(victim, "while training" if self.is_training() else "during start-up")

    def during_shutdown(self, victim: str) -> bool:
        """Kill after the last step, before all processes have exited; False if too late."""
        last = self.total_steps
        if not self.job.until(lambda: self.job.place()[1] == last, "the last step"):
            return False
        time.sleep(self.rng.uniform(0, 0.2))
        return self.kill(victim, "during shutdown")

    def kill(self, victim: str, moment: str) -> bool:
        """Kill now, and restart torchrun if it was hit; False if nobody was left to kill."""
        job = self.job
        if job.agent.poll() is not None:  # another process may have its ID by now
            return False
        victims = choose(job, self.rng, victim)
        self.seen |= set(job.ranks())
        attempt, step = job.newest_attempt(), job.place()[1]
        at, hit = time.time(), 0
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit += 1
        if not hit:
            return False
        self.attempt, problem = attempt, ""
        if victim in ("torchrun", "the machine"):
            problem = self.start_again()
        what = f"{victim} {moment}, attempt {attempt}, step {step}"
        self.kills.append(Kill(f"SIGKILL of {victim} {moment}", what, at, attempt, problem))
        return True

    def start_again(self) -> str:
        """Start again once the dead torchrun's ranks are gone; the problem, or ""."""
        job, problem = self.job, ""
        job.agent.wait()
        # Shorter than the rest of the run: they must not exit merely because they finished.
        deadline = time.monotonic() + 2
        while (left := job.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            problem = f"ranks outlive torchrun by 2 s: {describe(left)}"
            job.end()
        job.start()
        return problem


def draw(rng: random.Random, number: int) -> list[tuple[str, str]]:
    """Moments and victims for one run: most while it trains, and one at its end."""
    drawn = []
    for _ in range(number - 1):
        if rng.random() < 0.25:
            victim = rng.choice(("a rank", "a rank", "all ranks", "torchrun"))
            drawn.append(("during_start_up", victim))
        else:
            names = ("a rank", "a loader worker", "all ranks", "torchrun")
            (victim,) = rng.choices(names, weights=(4, 3, 2, 1))
            drawn.append(("while_training", victim))
    return [*drawn, ("during_shutdown", rng.choice(("a rank", "all ranks", "torchrun")))]


QUICK = [
    ("during_start_up", "a rank"),
    ("while_training", "a loader worker"),
    ("while_training", "torchrun"),
    ("during_shutdown", "a rank"),
]


def kills(bench: Bench) -> Iterable[Try]:
    """The group: run after run, until there were enough kills."""
    rng, made = bench.rng("kills"), 0
    while made < (1 if bench.quick else 104):
        plan = {**PLAN, "async_checkpoint": rng.random() < 0.5}
        if bench.quick:
            plan["max_epochs"] = 2
        tries = killed_run(bench, rng, plan, QUICK if bench.quick else draw(rng, 21))
        made += len(tries)
        yield from tries


def killed_run(
    bench: Bench,
    rng: random.Random,
    plan: dict[str, Any],
    drawn: list[tuple[str, str]],
    *,
    forks: bool = False,
    trainer: Trainer = HARDENED,
    world_size: int = 2,
) -> list[Try]:
    """One run with several kills: a try for each.

    Args:
        drawn: moment and victim of each kill.
        forks: see ``Torchrun``. Then no process is ever killed while it imports torch.
    """
    folder, problem = bench.folder("kills"), ""
    cfg = trainer.small(folder / "run", **plan)
    per_epoch = -(-plan["dataset_size"] // plan.get("global_batch_size", SAMPLES_PER_STEP))
    with Torchrun(cfg, world_size, restarts=50, forks=forks) as job:
        killer = Killer(job, rng, per_epoch * plan["max_epochs"])
        try:
            for moment, victim in drawn:
                getattr(killer, moment)(victim)
            job.until(lambda: job.agent.poll() is not None, "the end")
        except Hang as hang:
            problem = str(hang)
        code = job.agent.poll()
        deadline = time.monotonic() + 10
        while (left := job.processes()) and time.monotonic() < deadline and not problem:
            time.sleep(0.02)
        if left and not problem:
            problem = f"left running: {describe(left)}"
    if code and not problem:
        problem = f"torchrun exited with {code}: {job.stderr[-3000:]}"
    equal = same_weights(job.run_dir, bench.reference(cfg, world_size))
    whole = bench.judge("", "", job.run_dir, equal=equal, problem=problem)
    return leave_all(folder, tries_of(job.run_dir, killer.kills, whole))


def tries_of(run_dir: Path, kills: list[Kill], whole: Try) -> list[Try]:
    """A try for each kill of a run, or one for a run that failed without any.

    Args:
        whole: the judgment of the whole run.
    """
    tries = []
    for number, kill in enumerate(kills):
        later = kills[number + 1].at if number + 1 < len(kills) else None
        started = new_step_after(run_dir, kill)
        if started is not None and (later is None or started < later):
            restart_s = started - kill.at
        else:  # the next kill came before the first new step, or no step was left to train
            restart_s = None
        own = kill.problem or whole.problem
        # Count what the whole run has lost only once.
        counted = whole if number == 0 else whole._replace(lost=0, repeated=0, replayed_steps=0)
        each = counted._replace(fault=kill.fault, what=kill.what, problem=own)
        tries.append(each._replace(restart_s=restart_s))
    if whole.problem and not tries:
        tries.append(whole._replace(fault="start under torchrun", what="without any kill"))
    return tries


def leave_all(folder: Path, tries: list[Try]) -> list[Try]:
    """Remove the folder if the run survived every kill; otherwise the failed tries name it."""
    if not any(each.problem for each in tries):
        shutil.rmtree(folder)
    return [leave(folder, each) if each.problem else each for each in tries]


def new_step_after(run_dir: Path, kill: Kill) -> float | None:
    """When a later attempt trained its first step, in Unix seconds."""
    attempts = sorted(attempt for attempt in read_ledger(run_dir) if attempt > kill.attempt)
    return first_new_step_at(run_dir, attempts[0]) if attempts else None

"""Random kills under torchrun: a rank, a loader worker, all ranks at once, torchrun itself.

Two ranks with two loader workers each. A run is killed about twenty times on its way, often in
one epoch, sometimes while it starts up or shuts down, and goes on by torchrun's own restarts;
if torchrun was killed, by starting the same command again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.evidence.audit import read_ledger
from rehearsal.engine.processes import children_of
from rehearsal.faults.forked import SCRIPT, SMALL, Hang, arguments, describe, new_folder
from rehearsal.faults.forked import reference, same_weights
from rehearsal.faults.matrix import Bench, Try, first_new_step_at, leave

PLAN = {
    **SMALL,
    "dataset_size": 1603,  # 101 steps an epoch
    "max_epochs": 6,
    "num_workers": 2,
    "checkpoint_every_steps": 10,
    "log_every": 5,
    # Longer than the deadline here: a start that waits for a dead peer is a hang, not slow.
    "dist_timeout_s": 300.0,
}
DEADLINE_S = 60.0
MARK = "FAULTS_MARK"  # in the environment of every process that comes of a run


class Kill(NamedTuple):
    """One kill that was made."""

    fault: str
    what: str
    at: float  # unix seconds
    attempt: int  # the newest one when it happened
    problem: str = ""


class Torchrun:
    """Torchrun with two ranks in a run folder. As a context, it leaves no process behind."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.run_dir, self.settings = folder, folder / "run", settings
        batch = settings["micro_batch_size"] * settings["grad_accum_steps"] * 2
        self.total_steps = -(-settings["dataset_size"] // batch) * settings["max_epochs"]
        self.mark = uuid.uuid4().hex
        self.agent: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Run the command, the first time or once more."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "--max-restarts=50",
            "--monitor-interval=0.05",
            str(SCRIPT),
            *arguments(self.run_dir, self.settings),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark}
        with (self.folder / "output.txt").open("ab") as output:
            self.agent = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            if self.agent is not None:
                self.agent.poll()

    def processes(self) -> list[int]:
        """Every living process that carries the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def ranks(self) -> list[int]:
        """The agent's living ranks, in the order of their number."""
        assert self.agent is not None
        found = {}
        for pid in children_of(self.agent.pid):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                for variable in environ:
                    if variable.startswith(b"RANK="):
                        found[int(variable[5:])] = pid
        return [found[rank] for rank in sorted(found)]

    def until(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until the condition holds; False if torchrun has ended before.

        Raises:
            Hang: if neither comes within the deadline.
        """
        assert self.agent is not None
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self.agent.poll() is not None:
                return condition()
            if time.monotonic() > deadline:
                tail = (self.folder / "output.txt").read_text(errors="replace")[-1500:]
                stuck = describe(self.processes())
                raise Hang(f"not within {DEADLINE_S:.0f} s: {what}\n{stuck}\n{tail}")
            time.sleep(0.01)
        return True

    def place(self) -> tuple[int, int]:
        """Newest attempt that has trained, and its newest step, on rank 0; (-1, 0) before."""
        line = last_record(self.run_dir / "ledger" / "rank-0.jsonl")
        return line.get("attempt", -1), line.get("step", 0)

    def newest_attempt(self) -> int:
        """The newest attempt that rank 0 knows of, trained or not."""
        log = last_record(self.run_dir / "logs" / "rank-0.jsonl")
        return max(int(log.get("attempt", -1)), self.place()[0])


def last_record(path: Path) -> dict[str, Any]:
    """The last whole line of a growing file, as JSON; {} if there is none yet."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4096))
        lines = file.read().splitlines(keepends=True)
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            record: dict[str, Any] = json.loads(line if line.endswith(b"\n") else b"")
            return record
    return {}


def choose(job: Torchrun, rng: random.Random, victim: str) -> list[int]:
    """The processes that a kill of ``victim`` ends; none if they are gone already."""
    ranks = job.ranks()
    if victim == "torchrun":
        assert job.agent is not None
        return [job.agent.pid]
    if victim == "all ranks" or not ranks:
        return ranks
    rank = rng.choice(ranks)
    if victim == "a loader worker":
        workers = children_of(rank)
        return [rng.choice(workers)] if workers else []
    return [rank]


class Killer:
    """Kills in one run, one after the other, and lets it recover in between."""

    def __init__(self, job: Torchrun, rng: random.Random) -> None:
        self.job, self.rng = job, rng
        self.kills: list[Kill] = []
        self.seen: set[int] = set()  # ranks of starts before the current one
        self.attempt = -1  # the newest when the last kill was made

    def is_new_start(self) -> bool:
        """Whether both ranks of the next start are there."""
        ranks = self.job.ranks()
        return len(ranks) == 2 and not self.seen & set(ranks)

    def is_training(self) -> bool:
        """Whether the start after the last kill has trained a step."""
        return self.job.place()[0] > self.attempt

    def while_training(self, victim: str) -> bool:
        """Kill some steps after the first new one; False if the run has ended before."""
        job, steps = self.job, self.rng.randrange(25)
        if not job.until(self.is_training, "a new step"):
            return False
        target = job.place()[1] + steps
        if not job.until(lambda: job.place()[1] >= target, f"step {target}"):
            return False
        time.sleep(self.rng.uniform(0, 0.02))
        return self.kill(victim, "while training")

    def during_start_up(self, victim: str) -> bool:
        """Kill before the first step; False if the run has ended before."""
        # Importing torch takes two of these seconds, the meeting of the ranks most of the rest.
        delay_s = self.rng.uniform(0, 4)
        if not self.job.until(self.is_new_start, "two new ranks"):
            return False
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline and not self.is_training():
            time.sleep(0.01)
        return self.kill(victim, "while training" if self.is_training() else "during start-up")

    def during_shutdown(self, victim: str) -> bool:
        """Kill after the last step, before all processes have ended; False if too late."""
        last = self.job.total_steps
        if not self.job.until(lambda: self.job.place()[1] == last, "the last step"):
            return False
        time.sleep(self.rng.uniform(0, 0.2))
        return self.kill(victim, "during shutdown")

    def kill(self, victim: str, moment: str) -> bool:
        """Kill now, and see to it that the job goes on; False if nobody was left to kill."""
        job = self.job
        assert job.agent is not None
        if job.agent.poll() is not None:  # its process id may be another's by now
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
        if victim == "torchrun":
            problem = self.start_again()
        what = f"{victim} {moment}, attempt {attempt}, step {step}"
        self.kills.append(Kill(f"SIGKILL of {victim} {moment}", what, at, attempt, problem))
        return True

    def start_again(self) -> str:
        """Start the command again once the dead torchrun's ranks are gone; else the problem."""
        job, problem = self.job, ""
        assert job.agent is not None
        job.agent.wait()
        # Not so long that they could end because they have trained to the end.
        deadline = time.monotonic() + 2
        while (left := job.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            problem = f"ranks outlive torchrun by 2 s: {describe(left)}"
            job.__exit__()
        job.start()
        return problem


def draw(rng: random.Random, number: int) -> list[tuple[str, str]]:
    """Moments and victims of a run; most while it trains, and one at its end."""
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
    """Run after run, until there were enough kills."""
    rng, made = bench.rng("kills"), 0
    while made < (1 if bench.quick else 104):
        plan = {**PLAN, "async_checkpoint": rng.random() < 0.5}
        if bench.quick:
            plan["max_epochs"] = 2
        tries = killed_run(bench, rng, plan, QUICK if bench.quick else draw(rng, 21))
        made += len(tries)
        yield from tries


def killed_run(
    bench: Bench, rng: random.Random, plan: dict[str, Any], drawn: list[tuple[str, str]]
) -> list[Try]:
    """One run with several kills: a try for each."""
    folder, problem = new_folder(bench, "kills"), ""
    with Torchrun(folder, plan) as job:
        killer = Killer(job, rng)
        try:
            for moment, victim in drawn:
                getattr(killer, moment)(victim)
            job.until(lambda: job.agent is None or job.agent.poll() is not None, "the end")
        except Hang as hang:
            problem = str(hang)
        code = job.agent.poll() if job.agent else None
        deadline = time.monotonic() + 10
        while (left := job.processes()) and time.monotonic() < deadline and not problem:
            time.sleep(0.02)
        if left and not problem:
            problem = f"left running: {describe(left)}"
    if code and not problem:
        tail = (folder / "output.txt").read_text(errors="replace")[-3000:]
        problem = f"torchrun ended with {code}: {tail}"
    equal = same_weights(job.run_dir, reference(bench, 2, plan), exactly=True)
    whole = bench.judge("", "", job.run_dir, equal=equal, problem=problem)
    return leave_all(folder, tries_of(job.run_dir, killer.kills, whole))


def tries_of(run_dir: Path, kills: list[Kill], whole: Try) -> list[Try]:
    """A try for each kill of a run; one for a run that came to grief without any.

    Args:
        whole: what the whole run came to.
    """
    tries = []
    for number, kill in enumerate(kills):
        later = kills[number + 1].at if number + 1 < len(kills) else None
        started = new_step_after(run_dir, kill)
        if started is not None and (later is None or started < later):
            restart_s = started - kill.at
        else:  # the next kill came before the first new step, or there was none left to train
            restart_s = None
        own = kill.problem or whole.problem
        # What the whole run has lost is counted once.
        counted = whole if number == 0 else whole._replace(lost=0, repeated=0, replayed_steps=0)
        each = counted._replace(fault=kill.fault, what=kill.what, problem=own)
        tries.append(each._replace(restart_s=restart_s))
    if whole.problem and not tries:
        tries.append(whole._replace(fault="start under torchrun", what="without any kill"))
    return tries


def leave_all(folder: Path, tries: list[Try]) -> list[Try]:
    """Remove the folder if every kill in it was survived; else each that was not names it."""
    if not any(each.problem for each in tries):
        shutil.rmtree(folder)
    return [leave(folder, each) if each.problem else each for each in tries]


def new_step_after(run_dir: Path, kill: Kill) -> float | None:
    """Unix seconds of the first step that a later attempt has trained."""
    attempts = sorted(attempt for attempt in read_ledger(run_dir) if attempt > kill.attempt)
    return first_new_step_at(run_dir, attempts[0]) if attempts else None

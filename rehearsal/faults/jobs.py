"""The one way to launch a job, for faults and tests: a trainer's own script on forked ranks.

    finish(small(run_dir), 2)                              an uninterrupted run; its summary
    start(small(run_dir), 2, partial(kill, 1, 5))          one start; how each rank ended
    with Job(small(run_dir), 2, partial(pause, 0, 5, go)) as job: ...     while it runs

Which trainer it is follows from the config: ``small`` is scripts/launch.py's, ``small_live``
is trainer_core/live.py's.

A job of two ranks takes half a second, because a warm server forks the ranks. Whatever is meant
to fail is broken inside a rank before the command runs, so it fails at an exact step; see
``breaks.py``. ``torchrun.py`` starts the same command under the real launcher, for the tests
and faults that are about the launcher.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from torch.distributed import TCPStore

from rehearsal.engine.processes import describe, processes_in
from rehearsal.engine.programs import Prepare, Program
from rehearsal.engine.reports import Failure, RankReport
from rehearsal.faults.breaks import once_live_is_defined, wrap
from trainer_core import live
from trainer_core.config import TrainConfig
from trainer_core.settings import flag_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, LIVE = ROOT / "scripts" / "launch.py", ROOT / "trainer_core" / "live.py"
Settings = TrainConfig | live.TrainConfig
DEADLINE_S = 60.0
PATIENCE_S = 10.0  # how long a rank's own processes may outlive it

# 203 is divisible by no batch size here, so each epoch ends with a smaller step.
# A run takes about a second: with two ranks, 26 steps of 16 samples.
SMALL: dict[str, Any] = {
    "dataset_size": 203,
    "input_dim": 8,
    "hidden_dim": 16,
    "micro_batch_size": 4,
    "grad_accum_steps": 2,
    "max_epochs": 2,
    "checkpoint_every_steps": 3,
    "log_every": 1,
    "device": "cpu",
    "dist_timeout_s": 60.0,
}
# For faults that each take two runs: half the steps. The dropout draws from each rank's random
# stream, so a stream that is not restored changes the weights.
ONE_EPOCH: dict[str, Any] = {"max_epochs": 1, "dropout": 0.2, "trace_steps": 0}
# For faults that strike at every write: six steps in a tenth of a second, saved after 3, 4
# and 6. Each save but the first has an older checkpoint to delete.
SIX_STEPS: dict[str, Any] = {
    "dataset_size": 11,
    "input_dim": 2,
    "hidden_dim": 4,
    "num_layers": 1,
    "micro_batch_size": 2,
    "grad_accum_steps": 1,
    "pinned_global_batch_size": 4,
    "dropout": 0.1,
    "checkpoint_every_steps": 4,
    "keep_last": 1,
}


SMALL_LIVE: dict[str, Any] = {
    "dataset_size": 203,
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "max_epochs": 2,
    "checkpoint_every_steps": 3,
    "device": "cpu",
}
SIX_STEPS_LIVE: dict[str, Any] = {
    "dataset_size": 11,
    "global_batch_size": 4,
    "micro_batch_size": 1,
    "checkpoint_every_steps": 4,
}


def small(run_dir: Path, **changes: Any) -> TrainConfig:
    """``SMALL`` in a run folder, with some settings changed."""
    return TrainConfig(**{**SMALL, "run_dir": run_dir, **changes})


def small_live(run_dir: Path, **changes: Any) -> live.TrainConfig:
    """The same for live.py."""
    return live.TrainConfig(**{**SMALL_LIVE, "run_dir": str(run_dir), **changes})


def in_folder(cfg: Settings, run_dir: Path) -> Settings:
    """The same settings for another run folder."""
    folder: Any = run_dir if isinstance(cfg, TrainConfig) else str(run_dir)
    return replace(cfg, run_dir=folder)


def script_of(cfg: Settings) -> Path:
    """The script whose flags the settings are."""
    return SCRIPT if isinstance(cfg, TrainConfig) else LIVE


def arguments(cfg: Settings) -> list[str]:
    """The script's flags that give ``cfg``, except the world size, which torchrun sets."""
    words = []
    for spec in fields(cfg):
        value, flag = getattr(cfg, spec.name), flag_name(spec.name)
        if value == spec.default or spec.name == "world_size":
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, "none" if value is None else str(value)]
    return words


# ---------------------------------------------------------------- in the rank


def in_rank(answer: Path, is_live: bool, prepare: Prepare | None) -> None:
    """Called in each rank before the command: record how ``run`` ends, and apply the breaks."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    change = partial(record_and_break, answer, prepare)
    if is_live:
        once_live_is_defined(change)
    else:
        change()


def record_and_break(answer: Path, prepare: Prepare | None) -> None:
    """Write what ``run`` returns or raises into ``answer`` as JSON, and apply the breaks.

    The scripts print no more than their users need, and most of it on one rank only.
    """

    def recorded(run: Any, *positional: Any, **named: Any) -> dict[str, Any]:
        end: dict[str, Any] = {}
        try:
            end["answer"] = run(*positional, **named)
        except BaseException as error:
            end["failure"] = {
                "kind": type(error).__name__,
                "message": str(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
            raise
        finally:
            undo_limits()
            answer.write_text(json.dumps(end))
        return end["answer"]  # type: ignore[no-any-return]

    wrap("run", recorded)
    if prepare is not None:
        prepare()


def undo_limits() -> None:
    """Undo the breaks that would keep this process from writing its answer."""
    os.seteuid(os.getuid())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


# ---------------------------------------------------------------- the job


class Hang(Exception):
    """Ranks were still running at the deadline, or left a process behind. All were killed."""


class Job:
    """The ranks of one start. As a context, it leaves no process behind.

    Args:
        prepare: called in each rank before the command; ``breaks.py`` has many.
        output: a folder that keeps what the ranks print, in ``start-0``, ``start-1``, ...
    """

    def __init__(
        self,
        cfg: Settings,
        world_size: int,
        prepare: Prepare | None = None,
        *,
        output: Path | None = None,
    ) -> None:
        self.cfg, self.run_dir, script = cfg, Path(cfg.run_dir), script_of(cfg)
        self.is_output_ours = output is None
        if output is None:
            self.output = Path(tempfile.mkdtemp(prefix="job-"))
        else:
            self.output = output / f"start-{len(list(output.glob('start-*')))}"
        # This process plays torchrun's agent, which keeps the store in which the ranks meet.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
        }
        self.ranks: list[Program] = []
        for rank in range(world_size):
            folder = self.output / f"rank-{rank}"
            folder.mkdir(parents=True)
            program = Program(
                str(script),
                *arguments(cfg),
                environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                output=folder,
                prepare=partial(in_rank, folder / "answer.json", script == LIVE, prepare),
            )
            self.ranks.append(program)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self.is_output_ours:
            shutil.rmtree(self.output, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """The process IDs of the ranks."""
        return [rank.pid for rank in self.ranks]

    def wait(self, timeout_s: float = DEADLINE_S) -> list[RankReport]:
        """How each rank ended. When one dies, gloo's closed connections end the others.

        Raises:
            Hang: if a rank runs longer than ``timeout_s``, or a process of its own outlives it.
        """
        deadline = time.monotonic() + timeout_s
        for rank in self.ranks:
            with contextlib.suppress(TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
        if late := [number for number, rank in enumerate(self.ranks) if rank.poll() is None]:
            where = self.stacks(late)
            self.end()
            raise Hang(f"ranks {late} were still running after {timeout_s:.0f} s\n{where}")
        if left := self.left_behind():
            where = describe(left)
            self.end()
            raise Hang(f"ranks exited but left processes running:\n{where}")
        return [self.report(number) for number in range(len(self.ranks))]

    def stacks(self, ranks: list[int]) -> str:
        """Where these ranks are: according to the operating system, then stacks and output."""
        for number in ranks:
            for signal_ in (signal.SIGCONT, signal.SIGUSR1):
                self.ranks[number].send_signal(signal_)
        time.sleep(0.2)
        where = describe([self.pids[number] for number in ranks])
        return "\n".join([where, *map(self.said, ranks)])

    def left_behind(self) -> list[int]:
        """Processes of the ranks' sessions that outlive them by more than ``PATIENCE_S``."""
        deadline = time.monotonic() + PATIENCE_S
        while (left := processes_in(set(self.pids))) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def report(self, number: int) -> RankReport:
        """What a rank that has exited returned or raised, and what it printed."""
        path, end = self.output / f"rank-{number}" / "answer.json", {}
        if path.exists():
            with contextlib.suppress(ValueError):  # killed while it wrote
                end = json.loads(path.read_text())
        failure = end.get("failure")
        return RankReport(
            rank=number,
            exitcode=self.ranks[number].poll(),
            answer=end.get("answer"),
            has_answer="answer" in end,
            failure=Failure(**failure) if failure else None,
            output=self.said(number),
        )

    def end(self) -> None:
        """Kill the ranks and their loader workers, if any are left."""
        for rank in self.ranks:
            rank.close()
        for pid in processes_in(set(self.pids)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def said(self, rank: int | None = None) -> str:
        """What a rank has printed, or all of them."""
        ranks = self.ranks if rank is None else [self.ranks[rank]]
        return "".join(rank.stdout + rank.stderr for rank in ranks)


def start(
    cfg: Settings,
    world_size: int,
    prepare: Prepare | None = None,
    *,
    output: Path | None = None,
    timeout_s: float = DEADLINE_S,
) -> list[RankReport]:
    """Start the run as its user would, and wait; how each rank ended. Raises Hang."""
    with Job(cfg, world_size, prepare, output=output) as job:
        return job.wait(timeout_s)


def finish(cfg: Settings, world_size: int) -> dict[str, Any]:
    """Train to the end of the plan. Returns rank 0's summary.

    Raises:
        AssertionError: if a rank fails, or the ranks end with different weights.
    """
    reports = start(cfg, world_size)
    if problem := problem_of(reports):
        raise AssertionError(problem)
    summary: dict[str, Any] = reports[0].answer
    return summary


# ---------------------------------------------------------------- how a start ended


def codes_of(reports: list[RankReport]) -> list[int | None]:
    """The exit code of each rank."""
    return [report.exitcode for report in reports]


def problem_of(reports: list[RankReport]) -> str:
    """Why a start did not reach its end on all ranks, with equal weights; "" if it did."""
    for report in reports:
        if report.failure is not None:
            return f"rank {report.rank}: {report.failure.kind}: {report.failure.message}"
        if report.exitcode != 0 or not report.has_answer:
            return f"rank {report.rank}: exit code {report.exitcode}: {report.output[-2000:]}"
    if len({report.answer["weights_sha256"] for report in reports}) > 1:
        return "the ranks ended with different weights"
    return ""


def user_errors(reports: list[RankReport], *, says: str = "") -> str:
    """Which rank did not refuse with a message for its user; "" if all did.

    Args:
        says: what the message must name, so that refusing for another reason does not count.
    """
    for report in reports:
        if report.failure is None:
            return f"rank {report.rank} did not refuse: exit code {report.exitcode}"
        if report.failure.kind != "UserError":
            said = f"{report.failure.kind}: {report.failure.message}"
            return f"rank {report.rank} ended with a traceback, not a UserError: {said}"
        if says not in report.failure.message:
            return f"rank {report.rank} does not say {says!r}, but: {report.failure.message}"
    return ""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until the condition is true. Raises Hang, naming ``what``, at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Hang(f"timed out after {timeout_s:.0f} s, waiting for {what}")
        time.sleep(0.01)


def last_record(path: Path, having: str = "attempt") -> dict[str, Any]:
    """A growing file's last complete line with the entry ``having``; {} if none is there."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4096))
        lines = file.read().splitlines(keepends=True)
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            record: dict[str, Any] = json.loads(line if line.endswith(b"\n") else b"")
            if having in record:
                return record
    return {}


def wait_for_step(run_dir: Path, step: int, *, rank: int = 0, attempt: int = 0) -> None:
    """Wait until a rank's ledger shows ``step`` in ``attempt`` or a later one. Raises Hang."""
    ledger = run_dir / "ledger" / f"rank-{rank}.jsonl"

    def is_trained() -> bool:
        last = last_record(ledger, "samples")
        return bool(last) and last["step"] >= step and last["attempt"] >= attempt

    wait_until(is_trained, f"step {step} of rank {rank}")

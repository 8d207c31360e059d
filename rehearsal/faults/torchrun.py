"""The real launcher, for what depends on it: restarts, membership, signals, exit codes.

Everything else is a ``Job``.

    with Torchrun(small(run_dir), 2, restarts=3, forks=True) as job:
        os.kill(job.ranks()[1], signal.SIGKILL)
        code = job.wait()

By default, each process is a fresh interpreter, as it is for people who use torchrun, and takes
seconds to import torch. With ``forks=True`` torchrun is forked from the warm server and its
ranks from torchrun. That leaves out how an interpreter starts and how it shuts down; all of
torchrun's own code runs as it is, except the one call that starts a process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rehearsal.engine.processes import children_of, describe, handles
from rehearsal.engine.programs import Program, become
from rehearsal.faults.jobs import DEADLINE_S, Hang, Settings, arguments, last_record, script_of


class Torchrun:
    """Torchrun with its ranks. As a context, it leaves no process behind.

    Args:
        restarts: how often torchrun may restart the ranks when one fails.
        script: the config's own, or one that wraps it.
        meeting: torchrun's rendezvous flags.
        output: what the job prints goes into its folder ``torchrun``, as ``stdout`` and
            ``stderr``; the run folder's parent by default.
        forks: fork every process from the warm server instead of starting interpreters.
        environment: added to this process's.
    """

    def __init__(
        self,
        cfg: Settings,
        world_size: int,
        *,
        restarts: int = 0,
        meeting: Sequence[str] = ("--standalone",),
        script: Path | None = None,
        output: Path | None = None,
        forks: bool = False,
        **environment: str,
    ) -> None:
        self.cfg, self.run_dir, self.forks = cfg, Path(cfg.run_dir), forks
        self.world_size = world_size
        self.output = (output or self.run_dir.parent) / "torchrun"
        self.output.mkdir()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.command = [
            "-m",
            "torch.distributed.run",
            *meeting,
            f"--nproc-per-node={world_size}",
            f"--max-restarts={restarts}",
            "--monitor-interval=0.05",
            str(script or script_of(cfg)),
            *arguments(cfg),
        ]
        self.start()

    def start(self) -> None:
        """Run the command: the first time, or once more after torchrun has exited."""
        self.agent: Program | subprocess.Popen[bytes]
        if self.forks:
            self.agent = Program(
                *self.command,
                environment=self.environment,
                output=self.output,
                prepare=fork_the_ranks,
            )
            return
        with (
            (self.output / "stdout").open("ab") as output,
            (self.output / "stderr").open("ab") as errors,
        ):
            self.agent = subprocess.Popen(
                [sys.executable, *self.command],
                stdout=output,
                stderr=errors,
                env=self.environment,
                start_new_session=True,
            )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill every process that the job started."""
        self.agent.kill()
        self.agent.wait()
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    @property
    def stdout(self) -> str:
        """What torchrun and the ranks have printed."""
        return (self.output / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What torchrun and the ranks have printed to stderr."""
        return (self.output / "stderr").read_text(errors="replace")

    def wait(self, timeout_s: float = 120.0) -> int:
        """Torchrun's exit code. Raises Hang if it still runs after ``timeout_s``."""
        try:
            return self.agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.hang(f"torchrun did not exit within {timeout_s:.0f} s") from None

    def hang(self, what: str) -> Hang:
        """An account of what the job's processes are doing, with their Python stacks."""
        pids = self.processes()
        where = describe(pids)
        # The watchdog's handler writes the stack of every thread into the run's logs. A rank's
        # loader workers inherit it and share the file, so one process at a time writes.
        for pid in pids:
            if handles(pid, signal.SIGUSR2):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
                time.sleep(0.5)
        stacks = [
            f"{path.name}:\n{path.read_text(errors='replace')}"
            for path in sorted((self.run_dir / "logs").glob("*.stack"))
        ]
        return Hang("\n".join([what, where, *stacks, self.stderr[-1500:]]))

    def processes(self) -> list[int]:
        """Every living process of the job: each has inherited torchrun's standard output."""
        found, output = [], (self.output / "stdout").stat()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has exited, or is somebody else's
                if os.path.samestat((path / "fd" / "1").stat(), output):
                    found.append(int(path.name))
        return found

    def ranks(self) -> list[int]:
        """The process IDs of torchrun's living ranks, in rank order."""
        found = {}
        for pid in children_of(self.agent.pid):
            with contextlib.suppress(OSError):
                # A forked process still shows the environment that the server was started with.
                name = "comm" if self.forks else "environ"
                for word in Path(f"/proc/{pid}/{name}").read_bytes().strip().split(b"\0"):
                    if word.startswith(b"RANK="):
                        found[int(word[5:])] = pid
        return [found[rank] for rank in sorted(found)]

    def until(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until the condition is true; False if torchrun exits first.

        Raises:
            Hang: if neither happens within the deadline.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self.agent.poll() is not None:
                return condition()
            if time.monotonic() > deadline:
                raise self.hang(f"timed out after {DEADLINE_S:.0f} s, waiting for {what}")
            time.sleep(0.01)
        return True

    def place(self) -> tuple[int, int]:
        """The newest attempt in which rank 0 has trained, and its last step; (-1, 0) before."""
        line = last_record(self.run_dir / "ledger" / "rank-0.jsonl", "samples")
        return line.get("attempt", -1), line.get("step", 0)

    def newest_attempt(self) -> int:
        """The newest attempt that rank 0 knows of, whether it has trained or not."""
        # live.py has no log: its ledger also says when it starts.
        last = [
            last_record(self.run_dir / kind / "rank-0.jsonl") for kind in ("logs", "ledger")
        ]
        return max(int(line.get("attempt", -1)) for line in last)


# ---------------------------------------------------------------- in a torchrun that was forked


class ForkedRank:
    """What torchrun uses of ``subprocess.Popen``, for a rank that is forked from torchrun."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=become_rank, args=(command, environment))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid
        # Popen returns when the program runs: from then on torchrun may signal its group.
        while os.getsid(self.pid) != self.pid and self.poll() is None:
            time.sleep(0.001)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has exited. Raises TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.command, timeout)
            time.sleep(0.01)
        return code


def become_rank(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run ``python -u SCRIPT ...`` in a fork of torchrun, without torchrun's connections."""
    os.setsid()
    Path("/proc/self/comm").write_text(f"RANK={environment['RANK']}")
    for path in Path("/proc/self/fd").iterdir():
        # Torchrun may host the store. While a rank holds its sockets open, nobody sees it die.
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("socket:"):
                os.close(int(path.name))
    interpreter, unbuffered, *arguments = command
    assert (interpreter, unbuffered) == (sys.executable, "-u"), command
    become(arguments, environment, os.getcwd())


def fork_the_ranks() -> None:
    """Have this torchrun fork its ranks where it would start interpreters."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    def popen(_: object, command: Sequence[str], environment: Mapping[str, str]) -> ForkedRank:
        return ForkedRank(command, environment)

    subprocess_handler.SubprocessHandler._popen = popen  # type: ignore[method-assign, assignment]

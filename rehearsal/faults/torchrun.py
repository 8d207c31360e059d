"""The real launcher, for what depends on it: restarts, membership, signals, exit codes.

Each start imports torch in every process, which takes seconds. Everything else is a ``Job``.

    with Torchrun(small(run_dir), 2, restarts=3) as job:
        os.kill(job.ranks()[1], signal.SIGKILL)
        code = job.wait()
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from rehearsal.engine.processes import children_of, describe
from rehearsal.faults.jobs import DEADLINE_S, SCRIPT, Hang, arguments, last_record
from trainer_core.config import TrainConfig

MARK = "REHEARSAL_TORCHRUN"  # in the environment of every process that a job starts


class Torchrun:
    """Torchrun with its ranks. As a context, it leaves no process behind.

    Args:
        restarts: how often torchrun may restart the ranks when one fails.
        meeting: torchrun's rendezvous flags.
        output: a folder for ``torchrun.out`` and ``torchrun.err``; the run folder's parent by
            default.
        environment: added to this process's.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        world_size: int,
        *,
        restarts: int = 0,
        meeting: Sequence[str] = ("--standalone",),
        script: Path = SCRIPT,
        output: Path | None = None,
        **environment: str,
    ) -> None:
        self.cfg, self.run_dir = cfg, cfg.run_dir
        self.output = output or cfg.run_dir.parent
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            MARK: self.mark,
            **environment,
        }
        self.command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *meeting,
            f"--nproc-per-node={world_size}",
            f"--max-restarts={restarts}",
            "--monitor-interval=0.05",
            str(script),
            *arguments(cfg),
        ]
        self.start()

    def start(self) -> None:
        """Run the command: the first time, or once more after torchrun has exited."""
        with (
            (self.output / "torchrun.out").open("ab") as output,
            (self.output / "torchrun.err").open("ab") as errors,
        ):
            self.agent = subprocess.Popen(
                self.command,
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
        return (self.output / "torchrun.out").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What torchrun and the ranks have printed to stderr."""
        return (self.output / "torchrun.err").read_text(errors="replace")

    def wait(self, timeout_s: float = 120.0) -> int:
        """Torchrun's exit code. Raises Hang if it still runs after ``timeout_s``."""
        try:
            return self.agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.hang(f"torchrun was to exit within {timeout_s:.0f} s") from None

    def hang(self, what: str) -> Hang:
        """An account of what the job's processes are doing."""
        return Hang(f"{what}\n{describe(self.processes())}\n{self.stderr[-1500:]}")

    def processes(self) -> list[int]:
        """Every living process that carries the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has exited, or is somebody else's
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def ranks(self) -> list[int]:
        """The process IDs of torchrun's living ranks, in rank order."""
        found = {}
        for pid in children_of(self.agent.pid):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                for variable in environ:
                    if variable.startswith(b"RANK="):
                        found[int(variable[5:])] = pid
        return [found[rank] for rank in sorted(found)]

    def until(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until the condition is true; False if torchrun has exited before.

        Raises:
            Hang: if neither happens within the deadline.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self.agent.poll() is not None:
                return condition()
            if time.monotonic() > deadline:
                raise self.hang(f"not within {DEADLINE_S:.0f} s: {what}")
            time.sleep(0.01)
        return True

    def place(self) -> tuple[int, int]:
        """The newest attempt in which rank 0 has trained, and its last step; (-1, 0) before."""
        line = last_record(self.run_dir / "ledger" / "rank-0.jsonl")
        return line.get("attempt", -1), line.get("step", 0)

    def newest_attempt(self) -> int:
        """The newest attempt that rank 0 knows of, whether it has trained or not."""
        log = last_record(self.run_dir / "logs" / "rank-0.jsonl")
        return max(int(log.get("attempt", -1)), self.place()[0])

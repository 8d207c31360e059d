"""The same command as under torchrun, on ranks that a warm server forks: half a second a job.

What is broken is broken inside a rank, before the command runs, so it happens at an exact step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rehearsal.engine.processes import processes_in, stat_of
from rehearsal.faults.matrix import Bench
from trainer_core.checkpoint_format import published_steps
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import flag_name

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"
DEADLINE_S = 60.0

# Sizes that divide nothing, and a run of about a second.
SMALL: dict[str, Any] = {
    "dataset_size": 203,
    "input_dim": 8,
    "hidden_dim": 16,
    "micro_batch_size": 4,
    "grad_accum_steps": 2,
    "max_epochs": 1,
    "dropout": 0.2,
    "checkpoint_every_steps": 3,
    "log_every": 1,
    "trace_steps": 0,
    "dist_timeout_s": 60.0,
}
Prepare = Callable[[], None]


def arguments(run_dir: Path, settings: Mapping[str, Any]) -> list[str]:
    """The command line of launch.py that says ``settings``."""
    words = ["--run-dir", str(run_dir)]
    for name, value in settings.items():
        flag = flag_name(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, "none" if value is None else str(value)]
    return words


def run_script(folder: Path, words: list[str], prepare: Prepare | None) -> None:
    """What each rank does: break what is to be broken, then launch.py, as ``__main__``."""
    os.setsid()  # so that whatever it leaves behind can be told from other processes
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    output = os.open(folder / f"rank-{os.environ['RANK']}.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    gc.freeze()  # what the server has imported: to traverse it would copy all its pages
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.argv = [str(SCRIPT), *words]
    if prepare is not None:
        prepare()
    runpy.run_path(str(SCRIPT), run_name="__main__")


class Hang(Exception):
    """Ranks that still ran at the deadline, with what they were doing. They have been ended."""


class Job:
    """Ranks of one start of launch.py. As a context, it leaves no process behind.

    Args:
        folder: the output of each rank goes here, and each start's into one of its own.
        prepare: called in each rank before the command.
    """

    def __init__(
        self,
        folder: Path,
        world_size: int,
        settings: Mapping[str, Any],
        prepare: Prepare | None = None,
        run_dir: Path | None = None,
    ) -> None:
        self.run_dir = run_dir or folder / "run"
        number = len(list(folder.glob("start-*")))
        self.output = folder / f"start-{number}"
        self.output.mkdir(parents=True)
        words = arguments(self.run_dir, settings)
        self.workers = LocalRanks(partial(run_script, self.output, words, prepare), world_size)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return [process.pid or 0 for process in self.workers.processes]

    def wait(self, timeout_s: float = DEADLINE_S) -> list[int]:
        """The exit code of each rank.

        Raises:
            Hang: if a rank still runs after ``timeout_s``, or a process of its own does later.
        """
        deadline = time.monotonic() + timeout_s
        for process in self.workers.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, p in enumerate(self.workers.processes) if p.exitcode is None]
        if late:
            pids = [self.pids[rank] for rank in late]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGUSR1)
            time.sleep(0.2)
            seen = "\n".join(self.said(rank) for rank in late)
            described = describe(pids)
            self.end()
            raise Hang(f"ranks {late} still ran after {timeout_s:.0f} s\n{described}\n{seen}")
        left = self.left_behind(10.0)
        self.end()
        if left:
            raise Hang(f"left running by ranks that have ended:\n{describe(left)}")
        return [process.exitcode or 0 for process in self.workers.processes]

    def left_behind(self, patience_s: float) -> list[int]:
        """Processes of the ranks' sessions that outlive ``patience_s``."""
        deadline = time.monotonic() + patience_s
        while (left := processes_in(set(self.pids))) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def end(self) -> None:
        """Kill whatever is left of the ranks and of their loader workers."""
        for process in self.workers.processes:
            if process.exitcode is None:
                process.kill()
                process.join()
        for pid in processes_in(set(self.pids)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.workers.results.exists():
            with contextlib.suppress(EOFError):  # of a rank that has left by os._exit
                self.workers.wait(1.0)

    def said(self, rank: int | None = None) -> str:
        """What a rank has printed, or all of them."""
        name = "*" if rank is None else str(rank)
        paths = sorted(self.output.glob(f"rank-{name}.txt"))
        return "".join(path.read_text(errors="replace") for path in paths)


def describe(pids: list[int]) -> str:
    """Where each process waits, as far as the kernel says."""
    lines = []
    for pid in pids:
        words = [f"process {pid} ({stat_of(pid).state})"]
        for name in ("wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                words.append(f"{name}: {Path(f'/proc/{pid}/{name}').read_text().strip()}")
        lines.append("; ".join(words))
    return "\n".join(lines)


def new_folder(bench: Bench, name: str) -> Path:
    """An empty folder for one try."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=bench.root))


def last_state(run_dir: Path) -> dict[str, Any]:
    """The content of the newest checkpoint's state.pt."""
    newest = next(iter(published_steps(run_dir / "checkpoints").values()), None)
    if newest is None:
        return {}
    state: dict[str, Any] = torch.load(newest / "state.pt", weights_only=True)
    return state


def same_weights(run_dir: Path, other: Path, *, exactly: bool) -> bool:
    """Whether the newest checkpoints of two runs hold the same step's weights."""
    ours, theirs = last_state(run_dir), last_state(other)
    if not ours or ours.get("step") != theirs.get("step"):
        return False
    pairs = [(tensor, theirs["model"][name]) for name, tensor in ours["model"].items()]
    if exactly:
        return all(torch.equal(one, two) for one, two in pairs)
    # Another world size sums in another order; only the last bits may differ.
    return all(torch.allclose(one, two, rtol=1e-4, atol=1e-5) for one, two in pairs)


def reference(
    bench: Bench, world_size: int, settings: Mapping[str, Any], prepare: Prepare | None = None
) -> Path:
    """The run folder of a run that nothing disturbs; made once for each plan."""
    key = (world_size, repr(sorted(settings.items())), repr(prepare))
    if key not in bench.references:
        folder = bench.root / f"reference-{len(bench.references)}"
        with Job(folder, world_size, settings, prepare) as job:
            codes = job.wait()
        if any(codes):
            raise RuntimeError(f"the undisturbed run ended with {codes}:\n{job.said()}")
        bench.references[key] = job.run_dir
    return Path(bench.references[key])

"""Runs Python programs in processes forked from a warm server: 30 ms each instead of 3 s.

Python's own fork server (``multiprocessing``) imports torch once and forks a child per program.
The child looks like a fresh interpreter: its own session, environment, folder, ``sys.argv`` and
output. Two things differ, so test them on a real interpreter: which modules a program imports,
and what happens before its first line or after its last.

    run("scripts/audit_run.py", "runs/first").stdout
    with Program("-m", "rehearsal", "list") as program:
        program.wait(10)
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from types import ModuleType
from typing import Any

from rehearsal.engine.forkserver import end_with_server

Prepare = Callable[[], None]

# What the server imports once. Otherwise the first optimizer in each program would import
# torch._dynamo, which takes two seconds.
PRELOAD = [
    "__main__",
    "cloudpickle",
    "torch",
    "torch._dynamo",
    "torch.utils.serialization.config",
    "trainer_core.launch",
    "trainer_core.integrations.exporters",
    "rehearsal.engine.programs",
]


def start_server() -> None:
    """Start the server and its imports in the background."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()


def shut_down() -> None:
    """Kill the server, and with it every program it still runs.

    Without this, the interpreter would wait for the server at exit.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # it has no public handle
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        os.waitpid(server._forkserver_pid, 0)
        os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None


class Program:
    """A running Python program. As a context, it leaves no process of its session behind.

    Args:
        arguments: what would follow ``python``: a script, ``-m MODULE`` or ``-c CODE``, then
            its own arguments.
        environment: the whole environment; this process's by default.
        folder: its working directory; this process's by default.
        output: the folder for ``stdout`` and ``stderr``; a temporary one by default, which is
            deleted by ``close``.
        prepare: called in the child before the program's first line.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: Path | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        from cloudpickle import dumps

        self.arguments = arguments
        self.output = output or Path(tempfile.mkdtemp(prefix="program-"))
        self.is_output_ours = output is None
        start_server()
        self.process: ForkServerProcess = multiprocessing.get_context("forkserver").Process(
            target=main,
            args=(
                arguments,
                dict(os.environ if environment is None else environment),
                str(folder or Path.cwd()),
                self.output,
                dumps(prepare),  # by value: a test or a notebook may have defined it
            ),
        )
        self.process.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process ID, and that of its session."""
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for it to exit; return its exit code.

        Raises:
            TimeoutExpired: it still runs after ``timeout_s``. It is not killed.
        """
        self.process.join(timeout_s)
        code = self.process.exitcode
        if code is None:
            raise TimeoutExpired(self.arguments, timeout_s or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has exited."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        """What it has printed to stderr so far."""
        return self._text("stderr")

    def _text(self, name: str) -> str:
        path = self.output / name
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Kill it and whatever is left of its session, and delete a temporary output."""
        self.kill()
        self.process.join()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.is_output_ours:
            shutil.rmtree(self.output, ignore_errors=True)


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 60.0,
) -> CompletedProcess[str]:
    """Run a program to its end, as ``subprocess.run`` would.

    Raises:
        TimeoutExpired: it was killed after ``timeout_s``.
    """
    with Program(*arguments, environment=environment, folder=folder) as program:
        code = program.wait(timeout_s)
        return CompletedProcess(arguments, code, program.stdout, program.stderr)


# ---------------------------------------------------------------- in the child


def main(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    output: Path,
    prepare: bytes,
) -> None:
    """Become the program, in a session of its own that ends with the server."""
    os.setsid()
    end_with_server()
    redirect(output)
    become(arguments, environment, folder, pickle.loads(prepare))


def become(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    prepare: Prepare | None = None,
) -> None:
    """Give a forked process what a fresh interpreter would start with, and run the program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    multiprocessing.set_start_method(None, force=True)
    gc.freeze()  # a collection would copy every page the server has imported
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    set_torch_threads(environment)
    try:
        first, *rest = arguments
        # Read before `prepare`, which may take away the right to.
        text = Path(first).read_text() if first not in ("-m", "-c") else rest[0]
        if prepare is not None:
            prepare()
        if first == "-m":
            sys.argv = rest
            sys.path.insert(0, folder)
            runpy.run_module(text, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest[1:]] if first == "-c" else [first, *rest]
            sys.path.insert(0, "" if first == "-c" else str(Path(first).resolve().parent))
            execute(text, "<string>" if first == "-c" else first)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def redirect(output: Path) -> None:
    """Give this process its own stdin (empty), stdout and stderr."""
    files = [os.open(os.devnull, os.O_RDONLY)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files += [os.open(output / name, flags, 0o644) for name in ("stdout", "stderr")]
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    # Line by line, so that a kill loses none. They stay open as long as the process lives.
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)


def set_torch_threads(environment: Mapping[str, str]) -> None:
    """Torch read OMP_NUM_THREADS when the server imported it; have it read this one."""
    if (torch := sys.modules.get("torch")) is not None and "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))


def execute(text: str, file: str) -> None:
    """Run a script's text as ``__main__``."""
    module = ModuleType("__main__")
    module.__file__ = file
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    exec(compile(text, file, "exec"), vars(module))

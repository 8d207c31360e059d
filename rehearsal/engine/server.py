"""The caller's end of the server that forks ranks (``forkserver.py``), which outlives a job.

One server per process: it takes four seconds to start, and forks a rank in milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rehearsal.engine.processes import SWEEP_S, threads_below

ROOT = Path(__file__).resolve().parents[2]
MAX_THREADS = 1500  # of one job: a fork bomb exceeds it
SERVER_ENDED = "The process that starts the ranks has ended."


class ForkServer:
    """The process that forks ranks, and the connection to it.

    Args:
        modules: what it imports in advance, by name, so that no rank has to.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.modules = modules
        ours, theirs = socket.socketpair()
        self.connection, self.buffer = ours, b""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        }
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rehearsal.engine.forkserver",
                str(theirs.fileno()),
                *modules,
            ],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()
        self.is_ready = False

    def send(self, **request: object) -> None:
        """Send a request. Raises ConnectionError if the server is dead."""
        try:
            self.connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._ended() from error

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """Messages that arrive within ``timeout_s``. Raises ConnectionError if it is dead."""
        self.connection.settimeout(max(timeout_s, 1e-4))
        try:
            received = self.connection.recv(65536)
        except TimeoutError:
            return []
        except OSError as error:
            raise self._ended() from error
        if not received:
            raise self._ended()
        *lines, self.buffer = (self.buffer + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _ended(self) -> ConnectionError:
        self.log.seek(0)
        why = self.log.read().decode(errors="replace")[-2000:]
        return ConnectionError(f"{SERVER_ENDED} {why}".rstrip())

    def wait_for(self, key: str, timeout_s: float) -> None:
        """Wait for a message that has ``key``. Raises ConnectionError if none arrives."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if any(key in message for message in self.messages(0.5)):
                return
        raise ConnectionError(
            f"The process that starts the ranks did not answer in {timeout_s:g} s."
        )

    def wait_until_ready(self) -> None:
        """Wait for its imports, which take about four seconds the first time."""
        if not self.is_ready:
            self.wait_for("ready", 120.0)
            self.is_ready = True

    def has_too_many_threads(self) -> bool:
        """Whether the ranks have started more threads than a job may."""
        return threads_below(self.process.pid) > MAX_THREADS

    def sweep(self) -> None:
        """Have every process of every job killed, and wait until they are gone."""
        self.send(sweep=True)
        self.wait_for("swept", SWEEP_S + 5)

    def close(self) -> None:
        """End the server and, through it, whatever it still runs."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SWEEP_S + 5)
        self.process.kill()
        self.process.wait()
        self.log.close()


class Launcher:
    """Stands in where processes cannot be forked: each rank is a new interpreter, 3 s a job."""

    def __init__(self) -> None:
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}

    def wait_until_ready(self) -> None:
        """Nothing to wait for."""

    def send(self, *, start: str, world_size: int) -> None:
        """Start the ranks of a job."""
        for rank in range(world_size):
            command = [sys.executable, "-m", "rehearsal.engine.rank", start, str(rank)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, env=environment, start_new_session=True)
            self.ranks[process.pid] = process

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the server would send: the process ids, and the end of each rank."""
        time.sleep(timeout_s)
        ended = {pid: process.poll() for pid, process in self.ranks.items()}
        return [{"pids": list(self.ranks)}] + [
            {"pid": pid, "status": code} for pid, code in ended.items() if code is not None
        ]

    def has_too_many_threads(self) -> bool:
        """Always True: here the ranks' own threads cannot be counted."""
        return True

    def sweep(self) -> None:
        """Kill the ranks and what is left in their process groups."""
        for pid, process in self.ranks.items():
            with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
                os.killpg(pid, signal.SIGKILL)
            process.kill()
            process.wait()
        self.ranks.clear()

    def close(self) -> None:
        """Kill whatever still runs."""
        self.sweep()


turn = threading.RLock()  # one job at a time: two would compete for the same cores
_current: ForkServer | Launcher | None = None
_wanted: set[str] = set()  # modules that some caller's ranks will import


def current() -> ForkServer | Launcher | None:
    """The server of this process, if one has been started."""
    return _current


def warm_up(*modules: str) -> None:
    """Start the server in the background, and import torch here in the meantime.

    Args:
        modules: what the ranks will import; the server imports it once for all of them. If a
            running server has not, it is replaced.
    """
    global _current
    # At both ends of a connection, torch's store looks up the name of 127.0.0.1 in the DNS
    # (2.13, for its log). If the answer is lost, glibc now retries after one second, not five.
    os.environ.setdefault("RES_OPTIONS", "timeout:1")
    with turn:
        _wanted.update(modules)
        if isinstance(_current, ForkServer) and (
            _current.process.poll() is not None or not _wanted <= {*_current.modules}
        ):
            shut_down()
        if _current is None and hasattr(os, "fork"):
            _current = ForkServer(sorted(_wanted))
        elif _current is None:
            print(
                "This system cannot fork processes: each check starts new interpreters, which "
                "takes seconds."
            )
            _current = Launcher()
    import torch.distributed  # noqa: F401 - the ranks of a check meet in this process's store


def ready() -> ForkServer | Launcher:
    """The server, once its imports are done.

    Raises:
        RuntimeError: if it cannot be started, in two tries.
    """
    for _ in range(2):
        warm_up()
        assert _current is not None
        try:
            _current.wait_until_ready()
            return _current
        except ConnectionError as error:
            shut_down()
            why = error
    raise RuntimeError(
        f"The process that starts the ranks cannot be started: {why} Until it can, no check "
        "can run. Make sure that the machine has memory left and allows more processes, and "
        "that torch is installed in this environment."
    )


@atexit.register
def shut_down() -> None:
    """End the server. The next job starts another."""
    global _current
    if _current is not None:
        _current.close()
        _current = None

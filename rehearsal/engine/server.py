"""The caller's end of the servers that fork ranks (``forkserver.py``), which outlive a job.

Two servers per process: they take four seconds to start, and fork a rank in milliseconds. Each
has a hash seed of its own. Interpreters started by torchrun differ in it, too, so a set of
strings has another order on each of them, and ``hash("a")`` another value.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait  # select() refuses descriptors above 1023
from pathlib import Path
from typing import Any

from rehearsal.engine.interrupts import interrupted_later
from rehearsal.engine.plain_message import PlainMessage
from rehearsal.engine.processes import SWEEP_S, threads_below

ROOT = Path(__file__).resolve().parents[2]
HASH_SEEDS = (1, 2)  # fixed, so that the same attempt gets the same verdict again
# With glibc: all memory in huge pages, as far as the system grants them. To fork a process with
# torch loaded is to copy its page tables; these are a hundredth of the size.
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MAX_THREADS = 1500  # of one job: a fork bomb exceeds it
SERVER_ENDED = "The process that starts the ranks has ended."


class CannotStartRanks(PlainMessage, RuntimeError):
    """The processes that fork the ranks cannot be started."""


class ForkServer:
    """One process that forks ranks, and the connection to it.

    Args:
        modules: what it imports in advance, by name, so that no rank has to.
        hash_seed: its PYTHONHASHSEED.

    Raises:
        ConnectionError: if the system grants no socket, temporary file or process for it.
    """

    def __init__(self, modules: Sequence[str] = (), hash_seed: int = HASH_SEEDS[0]) -> None:
        self.is_ready = False
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": str(hash_seed),
            "CUDA_VISIBLE_DEVICES": "",  # drills are about CPUs, also on a machine with GPUs
            **HUGE_PAGES,
        }
        command = [sys.executable, "-m", "rehearsal.engine.forkserver"]
        try:
            with contextlib.ExitStack() as undo:
                ours, theirs = socket.socketpair()
                undo.enter_context(ours)
                with theirs:
                    log = undo.enter_context(tempfile.TemporaryFile())
                    self.process = subprocess.Popen(
                        [*command, str(theirs.fileno()), *modules],
                        pass_fds=[theirs.fileno()],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                undo.pop_all()  # both live as long as the server
        except OSError as error:  # no memory, process, descriptor or disk space left
            raise ConnectionError(f"{error}.") from error
        self.connection, self.buffer, self.log = ours, b"", log

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

    def close(self) -> None:
        """End the server and, through it, whatever it still runs."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SWEEP_S + 5)
        self.process.kill()
        self.process.wait()
        self.log.close()


class ForkServers:
    """The two servers as one: neighboring ranks come from different interpreters.

    Raises:
        ConnectionError: if the system cannot start two more processes.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.modules = modules
        self.servers: list[ForkServer] = []
        try:
            for hash_seed in HASH_SEEDS:
                self.servers.append(ForkServer(modules, hash_seed))
        except BaseException:  # also a Ctrl-C
            self.close()
            raise

    def is_alive(self) -> bool:
        """Whether both still run."""
        return all(server.process.poll() is None for server in self.servers)

    def wait_until_ready(self) -> None:
        """Wait for their imports."""
        for server in self.servers:
            server.wait_until_ready()

    def start(self, job: Path, world_size: int, shift: int) -> None:
        """Start the ranks of a job.

        Args:
            shift: if odd, each rank comes from the server that it does not come from if even.
        """
        for number, server in enumerate(self.servers):
            ranks = [r for r in range(world_size) if (r + shift) % len(self.servers) == number]
            server.send(start=str(job), ranks=ranks)

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """Messages that arrive within ``timeout_s``. Raises ConnectionError if one is dead."""
        readable = wait([server.connection for server in self.servers], max(timeout_s, 0.0))
        with_news = [server for server in self.servers if server.connection in readable]
        return [message for server in with_news for message in server.messages(0.0)]

    def has_too_many_threads(self) -> bool:
        """Whether the ranks have started more threads than a job may."""
        return sum(threads_below(s.process.pid) for s in self.servers) > MAX_THREADS

    def sweep(self) -> None:
        """Have every process of every job killed, and wait until they are gone."""
        for server in self.servers:
            server.send(sweep=True)
        for server in self.servers:
            server.wait_for("swept", SWEEP_S + 5)

    def close(self) -> None:
        """End both and, through them, whatever they still run."""
        for server in self.servers:
            server.connection.close()  # both sweep at the same time
        for server in self.servers:
            server.close()


turn = threading.RLock()  # one job at a time: two would compete for the same cores
_current: ForkServers | None = None
_wanted: set[str] = set()  # modules that some caller's ranks will import


def current() -> ForkServers | None:
    """The servers of this process, if they have been started."""
    return _current


def warm_up(*modules: str) -> None:
    """Start the servers in the background, and import torch here in the meantime.

    If they cannot be started, ``ready`` tries again and says why.

    Args:
        modules: what the ranks will import; a server imports it once for all of them. If the
            running servers have not, they are replaced.
    """
    with contextlib.suppress(ConnectionError):
        _start(modules)
    with interrupted_later():
        import torch.distributed  # noqa: F401 - a check's ranks meet in this process's store


def _start(modules: Sequence[str] = ()) -> ForkServers:
    """The servers, started if none run or those that run have not imported these modules."""
    global _current
    # At both ends of a connection, torch's store looks up the name of 127.0.0.1 in the DNS
    # (2.13, for its log). If the answer is lost, glibc now retries after one second, not five.
    os.environ.setdefault("RES_OPTIONS", "timeout:1")
    with turn:
        _wanted.update(modules)
        if _current and not (_current.is_alive() and _wanted <= {*_current.modules}):
            shut_down()
        if _current is None:
            _current = ForkServers(sorted(_wanted))
        return _current


def ready() -> ForkServers:
    """The servers, once their imports are done.

    Raises:
        CannotStartRanks: if they cannot be started, in two tries.
    """
    for _ in range(2):
        try:
            servers = _start()
            servers.wait_until_ready()
            return servers
        except ConnectionError as error:
            shut_down()
            why = error
    raise CannotStartRanks(
        f"The process that starts the ranks cannot be started: {why} Until it can, no check "
        "can run. Make sure that the machine has memory and disk space left, that it allows "
        "more processes and open files, and that torch is installed in this environment."
    )


@atexit.register
def shut_down() -> None:
    """End the servers. The next job starts others."""
    global _current
    if _current is not None:
        _current.close()
        _current = None

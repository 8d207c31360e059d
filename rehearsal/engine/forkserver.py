"""A process that has imported torch once and forks ranks in milliseconds.

Run by ``ranks.py`` as ``python -m rehearsal.engine.forkserver FD [MODULE ...]``. It takes one
JSON object per line on the socket FD and answers in kind:

    {"start": FOLDER, "world_size": W}  ->  {"pids": [...]}, later {"pid": ..., "status": ...}
    {"sweep": true}                     ->  {"swept": true}, when no process of any job is left

Why not multiprocessing's: its ranks import the caller's ``__main__`` again, it cannot say how a
grandchild ended, and a notebook's other users would share its list of imports. Linux and macOS.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

# Within it, processes that have been killed are gone. The thousand of a fork bomb take two
# cores ten seconds, for the kernel gives back the memory of each.
SWEEP_S = 30.0


def become_subreaper() -> None:
    """Have orphans of the ranks handed to this process: it can then find and end them."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def end_with_server() -> None:
    """Have the kernel end this rank when the server is killed: nobody else would."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def children() -> list[int]:
    """Process ids of the living children of this process. Linux; elsewhere none are found."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def fork_rank(folder: Path, rank: int, connection: socket.socket) -> int:
    """Start one rank in a process group of its own; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        end_with_server()
        connection.close()
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        from rehearsal.engine.rank import main

        main(folder, rank)
    finally:
        os._exit(70)  # main leaves by itself; here only if it could not begin


def sweep(live: set[int]) -> None:
    """End every process of every job, also those that have left their rank's group."""
    deadline = time.monotonic() + SWEEP_S
    while (left := live | set(children())) and time.monotonic() < deadline:
        for pid in left:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        reap(live)
        time.sleep(0.002)


def reap(live: set[int]) -> list[tuple[int, int]]:
    """Collect the ends of children: process id and exit code, negative for a signal."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            if end[0] in live:
                live.discard(end[0])
                # Its loader workers hold its sockets: peers would go on waiting for it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(end[0], signal.SIGKILL)
                ended.append((end[0], os.waitstatus_to_exitcode(end[1])))
    return ended


def serve(connection: socket.socket) -> None:
    """Obey until the other side is gone, then leave nothing running."""
    become_subreaper()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A kernel's interrupt is for the kernel; it tells this process what to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import select

    live: set[int] = set()

    def say(**message: object) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    say(ready=os.getpid())
    buffer = b""
    while True:
        sources: list[socket.socket | int] = [connection, reader]
        readable = select.select(sources, [], [])[0]
        if reader in readable:
            os.read(reader, 4096)
        for pid, status in reap(live):
            say(pid=pid, status=status)
        if connection not in readable:
            continue
        received = connection.recv(65536)
        if not received:
            return sweep(live)
        *lines, buffer = (buffer + received).split(b"\n")
        for request in map(json.loads, lines):
            if "start" in request:
                folder = Path(request["start"])
                pids = [fork_rank(folder, r, connection) for r in range(request["world_size"])]
                live.update(pids)
                say(pids=pids)
            else:
                sweep(live)
                say(swept=True)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # the learner's objects come by it
        import cloudpickle  # noqa: F401
    import torch
    import torch._dynamo  # the first optimizer imports it, for two seconds
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    # What torch.save and the graders import late. Not trainer_core: this server outlives an
    # edit of it, and its ranks would go on with the old code.
    import torch.utils.serialization.config

    import rehearsal.engine.rank  # noqa: F401

    for path in sorted((Path(__file__).parents[1] / "kit").glob("*/[!_]*.py")):
        importlib.import_module(f"rehearsal.kit.{path.parent.name}.{path.stem}")
    for name in sys.argv[2:]:  # what the ranks to come have asked for
        importlib.import_module(name)

    # No threads before a fork: a forked child that waits for one that it has not, hangs.
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])
    # A collection in a rank would copy every page of what is loaded here.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=int(sys.argv[1])))

"""A process that has imported torch once and forks ranks in milliseconds.

Run by ``server.py`` as ``python -m rehearsal.engine.forkserver FD [MODULE ...]``. It reads JSON
objects from the socket FD, one per line, and answers in the same form:

    {"start": FOLDER, "ranks": [...]}  ->  {"pids": {RANK: PID}}, later {"pid": P, "status": S}
    {"sweep": true}                    ->  {"swept": true}, when no process of any job is left

Why not multiprocessing's fork server: its children import the caller's ``__main__`` again, it
cannot say how a grandchild ended, and other users in the same notebook would share its list of
imports.
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
from multiprocessing.connection import wait  # select() refuses descriptors above 1023
from pathlib import Path

from rehearsal.engine.processes import SWEEP_S


def become_subreaper() -> None:
    """Become the parent of the ranks' orphans, so that this process can find and kill them."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def end_with_server() -> None:
    """Have the operating system kill this rank when the server dies: nobody else would."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def children() -> list[int]:
    """Process ids of this process's children. Linux only; elsewhere it finds none.

    Fast even after a fork bomb, with a thousand of them; ``processes.children_of`` is not.
    """
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def fork_rank(folder: Path, rank: int, connection: socket.socket) -> int:
    """Start one rank in its own process group; returns its process id."""
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
        os._exit(70)  # only if main could not start: it ends the process itself


def sweep(live: set[int]) -> None:
    """Kill every process of every job, even those that have left their rank's group."""
    deadline = time.monotonic() + SWEEP_S
    while (left := live | set(children())) and time.monotonic() < deadline:
        for pid in left:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        reap(live)
        time.sleep(0.002)


def reap(live: set[int]) -> list[tuple[int, int]]:
    """Collect children that have ended: process id and exit code, negative for a signal."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            if end[0] in live:
                live.discard(end[0])
                # Its loader workers hold its sockets, so peers would keep waiting for it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(end[0], signal.SIGKILL)
                ended.append((end[0], os.waitstatus_to_exitcode(end[1])))
    return ended


def serve(connection: socket.socket) -> None:
    """Serve requests until the other side is gone, then leave nothing running."""
    become_subreaper()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C is for the caller, which tells this process what to kill.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    live: set[int] = set()

    def say(**message: object) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    say(ready=os.getpid())
    buffer = b""
    while True:
        readable = wait([connection, reader])
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
                pids = {rank: fork_rank(folder, rank, connection) for rank in request["ranks"]}
                live.update(pids.values())
                say(pids=pids)
            else:
                sweep(live)
                say(swept=True)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # the learner's objects travel by it
        import cloudpickle  # noqa: F401
    import torch
    import torch._dynamo  # the first optimizer imports it, which takes two seconds
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    # What torch.save imports late. Not trainer_core, unless the caller asks for it: this server
    # outlives an edit of it, and its ranks would run the old code.
    import torch.utils.serialization.config

    import rehearsal.engine.rank  # noqa: F401

    for name in sys.argv[2:]:  # what the caller's ranks will need
        importlib.import_module(name)

    # No threads before a fork: a child that waits for a thread it does not have hangs.
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])
    # A collection in a rank would copy every page of what is loaded here.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=int(sys.argv[1])))

"""Which files a rank touches, system call by system call; and a SIGKILL at any one of them.

``torch.save`` writes in C++, where Python hooks see nothing. So the rank installs a seccomp
filter that stops it at the calls in ``CALLS`` and no others, and a process that it forks looks
at each stop through ptrace. At a stop before a call, the call has had no effect yet; at a stop
after it, the rank has not executed anything else. Linux on x86-64 or arm64.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import signal
import struct
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

# For each call: its number on x86-64 and on arm64 (None: not there), what it is called here,
# and which arguments name the file: a descriptor, a path, or a folder's descriptor and a path.
CALLS: dict[str, tuple[int | None, int | None, str, tuple[str, ...]]] = {
    "open": (2, None, "open", ("path",)),
    "creat": (85, None, "open", ("path",)),
    "openat": (257, 56, "open", ("folder", "path")),
    "openat2": (437, 437, "open", ("folder", "path")),
    "write": (1, 64, "write", ("file",)),
    "writev": (20, 66, "write", ("file",)),
    "pwrite64": (18, 68, "write", ("file",)),
    "pwritev": (296, 70, "write", ("file",)),
    "sendfile": (40, 71, "write", ("file",)),
    "copy_file_range": (326, 285, "write", ("", "", "file")),
    "truncate": (76, 45, "truncate", ("path",)),
    "ftruncate": (77, 46, "truncate", ("file",)),
    "fsync": (74, 82, "fsync", ("file",)),
    "fdatasync": (75, 83, "fsync", ("file",)),
    "rename": (82, None, "rename", ("path",)),
    "renameat": (264, 38, "rename", ("folder", "path")),
    "renameat2": (316, 276, "rename", ("folder", "path")),
    "link": (86, None, "link", ("", "path")),
    "linkat": (265, 37, "link", ("", "", "folder", "path")),
    "symlink": (88, None, "link", ("", "path")),
    "symlinkat": (266, 36, "link", ("", "folder", "path")),
    "unlink": (87, None, "unlink", ("path",)),
    "rmdir": (84, None, "rmdir", ("path",)),
    "unlinkat": (263, 35, "unlink", ("folder", "path")),
    "mkdir": (83, None, "mkdir", ("path",)),
    "mkdirat": (258, 34, "mkdir", ("folder", "path")),
}
MACHINES = ("x86_64", "aarch64")
AT_REMOVEDIR = 0x200  # with it, unlinkat is rmdir
# Names that are drawn at random, so that the same call has the same name in each run.
# live.py takes the time in nanoseconds.
RANDOM = re.compile(r"(?<=tmp-)(?:[0-9a-f]{32}|\d{19})|(?<=step-\d{8}-)[0-9a-f]{8}")

# <linux/ptrace.h>, <linux/seccomp.h>, <linux/prctl.h>
SEIZE, CONT, SYSCALL, LISTEN, GET_SYSCALL_INFO = 0x4206, 7, 24, 0x4208, 0x420E
SYSGOOD, FORK, VFORK, CLONE, SECCOMP, EXITKILL = 1, 2, 4, 8, 0x80, 0x100000
EVENT_SECCOMP, EVENT_STOP, WALL = 7, 128, 0x40000000
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER_MODE, SET_PTRACER = 38, 22, 2, 0x59616D61
RETURN_TRACE, RETURN_ALLOW = 0x7FF00000, 0x7FFF0000


class Point(NamedTuple):
    """One system call on a file of the run folder."""

    call: str
    path: str  # below the folder; * for what is drawn at random
    nth: int  # such call on this path, from 1

    def __str__(self) -> str:
        return f"{self.call} {self.nth} of {self.path}"


class Kill(NamedTuple):
    """Where the rank dies."""

    moment: Literal["before", "after"]
    point: Point


class Refused(OSError):
    """This system does not let one process trace another."""


libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    """Make one ptrace call. Raises OSError; ProcessLookupError if the thread has died."""
    if libc.ptrace(request, thread, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace({request:#x}): {os.strerror(code)}")


def numbers() -> dict[int, str]:
    """The calls by their number on this machine."""
    is_arm = platform.machine() == MACHINES[1]
    found = {(call[1] if is_arm else call[0]): name for name, call in CALLS.items()}
    return {number: name for number, name in found.items() if number is not None}


def fork() -> int:
    """Fork: both processes continue here. Returns 0 in the child, its id in the parent."""
    with warnings.catch_warnings():
        # Other threads are not copied, and the child needs none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# ---------------------------------------------------------------- the rank's side


def stop_at_calls() -> None:
    """From here on this thread, and what it starts, stops for its tracer at each of CALLS."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    wanted = list(numbers())
    program = [(load, 0, 0, 0)]  # the call's number
    program += [(jump_if_equal, len(wanted) - i, 0, n) for i, n in enumerate(wanted)]
    program += [(give, 0, 0, RETURN_ALLOW), (give, 0, 0, RETURN_TRACE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *i) for i in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    for request in ((SET_NO_NEW_PRIVS, 1, 0), (SET_SECCOMP, FILTER_MODE, header)):
        if libc.prctl(*request, 0, 0):
            raise Refused(ctypes.get_errno(), "no seccomp filter is permitted here")


def trace_this_rank(folder: Path, log: Path, kill: Kill | None = None) -> None:
    """Have this process traced to its end.

    Args:
        folder: calls on files below it are points.
        log: gets a line of JSON for each point before it happens, and one for the kill.
        kill: where this process dies, if it gets there.

    Raises:
        Refused: if the system does not permit it.
    """
    rank, tracer = os.getpid(), fork()
    if tracer == 0:
        tracer_main(rank, folder, log, kill)
    libc.prctl(SET_PTRACER, tracer, 0, 0, 0)  # where only a parent may trace, ask for it
    while "\nTracerPid:\t0\n" in Path("/proc/self/status").read_text():
        if os.waitpid(tracer, os.WNOHANG)[0]:
            raise Refused(1, "no process may trace another here (ptrace is not permitted)")
        time.sleep(0.001)
    stop_at_calls()


# ---------------------------------------------------------------- the tracer's side


def tracer_main(rank: int, folder: Path, log: Path, kill: Kill | None) -> NoReturn:
    """What the tracer does: attach, look at each stop, exit when the rank has."""
    code = 1
    try:
        lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        seize(rank)
        look(rank, str(folder.resolve()), lines, kill)
        code = 0
    finally:
        os._exit(code)


def seize(rank: int) -> None:
    """Attach to the rank's main thread; what it starts is attached with it."""
    deadline = time.monotonic() + 0.5
    while True:
        try:
            options = SYSGOOD | FORK | VFORK | CLONE | SECCOMP | EXITKILL
            return ptrace(SEIZE, rank, 0, options)
        except PermissionError:  # maybe until the rank has asked for it
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)


def look(rank: int, folder: str, lines: int, kill: Kill | None) -> None:
    """Log each point before it happens; kill the rank at ``kill``. Returns once it is dead."""
    names, seen = numbers(), Counter[tuple[str, str]]()

    def strike() -> None:
        os.write(lines, json.dumps({"killed": time.time()}).encode() + b"\n")
        os.kill(rank, signal.SIGKILL)

    while True:
        try:
            thread, status = os.waitpid(-1, WALL)
        except ChildProcessError:
            return
        if not os.WIFSTOPPED(status):
            continue
        stop, event = os.WSTOPSIG(status), status >> 16
        how, deliver = CONT, 0
        try:
            if event == EVENT_SECCOMP:
                try:
                    at = point_of(thread, names, folder)
                except FileNotFoundError:  # a closed descriptor: the call itself will fail
                    at = None
                if at is not None:
                    seen[at] += 1
                    point = Point(*at, seen[at])
                    os.write(lines, json.dumps(point).encode() + b"\n")
                    if kill is not None and point == kill.point:
                        if kill.moment == "before":
                            strike()
                        how = SYSCALL  # stop once more, when the call has been done
            elif stop == signal.SIGTRAP | 0x80:
                strike()
            elif event == EVENT_STOP and stop != signal.SIGTRAP:
                how = LISTEN  # a SIGSTOP: it stays stopped
            elif not event:
                deliver = stop
            ptrace(how, thread, 0, deliver)
        except ProcessLookupError:
            continue  # killed meanwhile


def point_of(thread: int, names: dict[int, str], folder: str) -> tuple[str, str] | None:
    """The call at which a thread has stopped, if it is on a file below ``folder``."""
    info = ctypes.create_string_buffer(88)
    ptrace(GET_SYSCALL_INFO, thread, len(info), ctypes.addressof(info))
    number, *arguments = struct.unpack_from("=7Q", info, 24)
    name = names[number]
    call, words = CALLS[name][2:]
    base, path = f"/proc/{thread}/cwd", ""
    for word, value in zip(words, arguments, strict=False):
        descriptor = ctypes.c_int(value & 0xFFFFFFFF).value
        if word == "file" or (word == "folder" and descriptor >= 0):
            base = f"/proc/{thread}/fd/{descriptor}"
        elif word == "path":
            path = text_at(thread, value)
    if not os.path.isabs(path):
        path = os.path.join(os.readlink(base), path)
    path = os.path.normpath(path)
    if not path.startswith(folder + "/"):
        return None
    if name == "unlinkat" and arguments[2] & AT_REMOVEDIR:
        call = "rmdir"
    return call, RANDOM.sub("*", path.removeprefix(folder + "/"))


def text_at(thread: int, address: int) -> str:
    """The string at an address of a stopped thread."""
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
    try:
        return os.fsdecode(os.pread(memory, 4096, address).partition(b"\0")[0])
    finally:
        os.close(memory)


# ---------------------------------------------------------------- the log


def read_trace(log: Path) -> tuple[list[Point], float | None]:
    """The points in the order in which they came, and when the rank was killed (or None)."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    killed = [line["killed"] for line in lines if isinstance(line, dict)]
    points = [Point(*line) for line in lines if isinstance(line, list)]
    return points, killed[0] if killed else None


def why_not(folder: Path) -> str:
    """Why no rank can be traced on this system; "" if one can.

    Args:
        folder: an empty one, for a trial.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"the tracer works only on Linux, on {' and '.join(MACHINES)}"
    child = fork()
    if child == 0:
        code = 1
        try:
            trace_this_rank(folder, folder.parent / f"{folder.name}.log")
            (folder / "trial").mkdir()
            code = 0
        finally:
            os._exit(code)
    is_ok = os.waitpid(child, 0)[1] == 0
    points, _ = read_trace(folder.parent / f"{folder.name}.log")
    return "" if is_ok and points == [Point("mkdir", "trial", 1)] else "ptrace is not permitted"

"""What the operating system says about running processes. Linux: it reads /proc.

The only reader of ``/proc/PID/stat`` in ``rehearsal``. Off Linux it finds no processes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# How long it may take until killed processes are gone. The thousand processes of a fork bomb
# take ten seconds on two cores, because the operating system gives back the memory of each.
SWEEP_S = 30.0


class Stat(NamedTuple):
    """One process. What each field means is in ``man 5 proc``."""

    state: str  # R running, S sleeping, D waiting for a disk, T stopped, Z zombie, X gone
    parent: int
    session: int
    cpu_ticks: int  # user and system time
    threads: int
    start_ticks: int  # since boot

    @property
    def is_alive(self) -> bool:
        """Whether it can still run; a zombie, which only waits to be reaped, cannot."""
        return self.state not in "ZX"


GONE = Stat("X", 0, 0, 0, 0, 0)


def stat_of(pid: int) -> Stat:
    """What is known about a process; ``GONE`` if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return GONE
    # Fields count from 3 after the name, which is in parentheses and may contain anything.
    fields = text.rpartition(")")[2].split()
    parent, session, user, system, threads, start = (
        int(fields[number - 3]) for number in (4, 6, 14, 15, 20, 22)
    )
    return Stat(fields[0], parent, session, user + system, threads, start)


def all_processes() -> dict[int, Stat]:
    """Every living process, by id."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid: stat for pid in pids if (stat := stat_of(pid)).is_alive}


def processes_in(sessions: set[int]) -> list[int]:
    """The living processes of these sessions, by id."""
    return [pid for pid, stat in all_processes().items() if stat.session in sessions]


def children_of(parent: int) -> list[int]:
    """The living children of a process, by id."""
    return [pid for pid, stat in all_processes().items() if stat.parent == parent]


def describe(pids: Iterable[int]) -> str:
    """Where each thread of each process waits, as far as the operating system says."""
    lines = []
    for pid in pids:
        lines.append(f"process {pid} ({stat_of(pid).state})")
        for thread in sorted(Path(f"/proc/{pid}/task").glob("*")):
            words = [f"  thread {thread.name}"]
            for name in ("comm", "wchan", "syscall", "stack"):
                with contextlib.suppress(OSError):
                    words.append(f"{name}: {(thread / name).read_text().strip()}")
            lines.append("; ".join(words))
    return "\n".join(lines)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, so that sending it does not end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def threads_below(ancestor: int) -> int:
    """How many threads all living descendants of a process have together."""
    processes = all_processes()
    below = {ancestor}
    while grown := {pid for pid, s in processes.items() if s.parent in below} - below:
        below |= grown
    return sum(processes[pid].threads for pid in below - {ancestor})


def threads_of_the_machine() -> int:
    """How many threads run on this machine, cheaply; 0 where that is not known."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0

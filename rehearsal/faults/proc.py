"""Processes as /proc shows them: whose children they are, which session, where they wait."""

from __future__ import annotations

import contextlib
from pathlib import Path


def stat_of(pid: int) -> tuple[str, int, int]:
    """State, parent and session of a process; ("X", 0, 0) if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", 0, 0
    # After the name, which may hold anything: man 5 proc.
    state, parent, _, session = text.rpartition(")")[2].split()[:4]
    return state, int(parent), int(session)


def living() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that has not exited."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    stats = {pid: stat_of(pid) for pid in pids}
    return {pid: (p, session) for pid, (s, p, session) in stats.items() if s not in "ZX"}


def processes_in(sessions: set[int]) -> list[int]:
    """The living processes of these sessions."""
    return [pid for pid, (_, session) in living().items() if session in sessions]


def children_of(parent: int) -> list[int]:
    """The living children of a process."""
    return [pid for pid, (own, _) in living().items() if own == parent]


def describe(pids: list[int]) -> str:
    """Where each process waits, as far as the kernel says."""
    lines = []
    for pid in pids:
        words = [f"process {pid} ({stat_of(pid)[0]})"]
        for name in ("wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                words.append(f"{name}: {Path(f'/proc/{pid}/{name}').read_text().strip()}")
        lines.append("; ".join(words))
    return "\n".join(lines)

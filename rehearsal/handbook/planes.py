"""The five planes of a training system, in a live job: its processes, threads and files.

What the operating system knows is read from /proc, so it is Linux only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rehearsal.engine.processes import children_of, stat_of
from rehearsal.evidence.pictures import BLUE, DARK, GREEN, ORANGE, PURPLE

# In the tints of the diagrams.
PLANES = {
    "control": ORANGE,
    "training": BLUE,
    "data": GREEN,
    "artifact": PURPLE,
    "observability": DARK,
}


class Process(NamedTuple):
    """A process of a job, as the operating system sees it."""

    pid: int
    depth: int  # below the first one
    name: str
    threads: list[str]  # their names, without the main thread's


def process_tree(pid: int, depth: int = 0) -> list[Process]:
    """A living process and all that it has started, parents before their children."""
    threads = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # it has ended
            threads.append((task / "comm").read_text().strip())
    if not threads:
        return []
    tree = [Process(pid, depth, threads[0], threads[1:])]
    trees = [process_tree(child, depth + 1) for child in children_of(pid)]
    # A rank is called by its number; the rest come in the order in which they were started.
    for child in sorted((t for t in trees if t), key=lambda t: (t[0].name, t[0].pid)):
        tree += child
    return tree


def files_of(run_dir: Path) -> dict[str, int]:
    """A run folder's files and their sizes in bytes, by path within the folder."""
    found = {}
    for path in sorted(run_dir.rglob("*")):
        with contextlib.suppress(OSError):  # a save in progress renames its folder
            if path.is_file():
                found[path.relative_to(run_dir).as_posix()] = path.stat().st_size
    return found


def open_files(pid: int, run_dir: Path) -> set[str]:
    """The files of a run folder that a process has open now, by path within the folder."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            found.add(Path(os.readlink(link)).relative_to(run_dir.resolve()).as_posix())
    return found


def still_running(processes: Sequence[Process], within_s: float) -> list[Process]:
    """Those that are still alive after that many seconds; returns as soon as all are gone."""
    deadline = time.monotonic() + within_s
    while True:
        left = [process for process in processes if stat_of(process.pid).is_alive]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)

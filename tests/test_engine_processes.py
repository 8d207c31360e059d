"""What /proc says about processes, read in one place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rehearsal.engine.processes import GONE, children_of, processes_in, stat_of, threads_below

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def until_it_is(state: str, pid: int) -> None:
    deadline = time.monotonic() + 10
    while stat_of(pid).state != state and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stat_of(pid).state == state


def test_a_process_is_seen_asleep_stopped_a_zombie_and_gone() -> None:
    """If a zombie counts as alive, the fault matrix waits for it forever."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    until_it_is("S", child.pid)
    stat = stat_of(child.pid)
    assert (stat.parent, stat.session, stat.threads) == (os.getpid(), child.pid, 1)
    assert stat.is_alive
    assert stat.start_ticks >= stat_of(os.getpid()).start_ticks
    assert child.pid in children_of(os.getpid())
    assert processes_in({child.pid}) == [child.pid]
    child.send_signal(signal.SIGSTOP)
    until_it_is("T", child.pid)
    assert stat_of(child.pid).is_alive
    child.kill()
    until_it_is("Z", child.pid)
    assert not stat_of(child.pid).is_alive
    assert processes_in({child.pid}) == []
    child.wait()
    assert stat_of(child.pid) == GONE
    assert not GONE.is_alive


def test_a_name_with_parentheses_and_spaces_moves_no_field(tmp_path: Path) -> None:
    """A process may have any name; a naive parser then reads the wrong field as parent."""
    odd = tmp_path / "a) R 1 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([odd, "60"])
    try:
        until_it_is("S", child.pid)
        assert stat_of(child.pid).parent == os.getpid()
    finally:
        child.kill()
        child.wait()


@pytest.mark.ranks
def test_threads_below_a_process_are_those_of_its_descendants_only() -> None:
    """Another kernel's fork bomb, or a busy machine, must not end this learner's check."""
    before = threads_below(os.getpid())
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60; :"], start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while threads_below(shell.pid) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threads_below(shell.pid) == 2
        assert threads_below(os.getpid()) == before + 3
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_nothing_else_in_rehearsal_reads_a_stat_file() -> None:
    """Each copy of the parser would have to handle odd process names by itself."""
    reads = re.compile(r"""/stat["']|["']stat["']""")
    paths = [p for folder in ("rehearsal", "scripts") for p in (ROOT / folder).rglob("*.py")]
    found = [p.relative_to(ROOT) for p in paths if reads.search(p.read_text("utf-8"))]
    assert found == [Path("rehearsal/engine/processes.py")]

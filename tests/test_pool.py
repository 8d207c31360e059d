"""The processes that judge many texts at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rehearsal.engine.processes import children_of, stat_of

CALLER = """
import time

from rehearsal.grading.drill import load
from rehearsal.grading.mutation_score import judge
from rehearsal.grading.pool import processes

if __name__ == "__main__":
    with processes(2) as pool:
        drill = load("run_hangs_at_its_first_log")
        text = drill.solutions()["solution"]
        for judging in [pool.submit(judge, drill.id, text, (1,), 60.0) for _ in range(2)]:
            judging.result()
        print("judged", flush=True)
        time.sleep(600)
"""


def below(pid: int) -> list[int]:
    """All processes below one, its own excepted."""
    children = children_of(pid)
    return children + [one for child in children for one in below(child)]


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_no_process_outlives_a_caller_that_is_killed(tmp_path: Path) -> None:
    """An interrupted measurement would go on using two cores, and nobody would see it."""
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    caller = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "judged\n"
        started = below(caller.pid)
        assert len(started) >= 4  # two that judge, and a server of each
    finally:
        caller.kill()
        caller.communicate()
    deadline = time.monotonic() + 20
    while any(stat_of(pid).is_alive for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in started if stat_of(pid).is_alive] == []

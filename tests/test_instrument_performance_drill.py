"""The clock of the drill instrument_performance, which the check moves on by itself."""

from __future__ import annotations

import time
import timeit
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rehearsal.grading.check import attempt_of_source, grade_attempt
from rehearsal.grading.drill import load, module_at

DRILL = load("instrument_performance")
clocks = module_at(DRILL.folder / "clock.py")
plans = module_at(DRILL.folder / "plan.py")

IMPORTS = """
import time
import timeit
from time import monotonic_ns as now_ns, perf_counter, sleep

alias = time.time

READINGS = {
    "perf_counter": lambda: perf_counter(),
    "perf_counter_ns": lambda: time.perf_counter_ns() / 1e9,
    "monotonic": lambda: time.monotonic(),
    "monotonic_ns": lambda: now_ns() / 1e9,
    "time": lambda: alias(),
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "default_timer": lambda: timeit.default_timer(),
}
"""


def clock_of(folder: Path, rank: int = 0, world_size: int = 1) -> Any:
    """A rank's clock."""
    context = SimpleNamespace(rank=rank, world_size=world_size, folder=folder)
    return clocks.Clock(context, start_s=1000)


def test_all_clocks_show_the_time_that_the_check_lets_pass(tmp_path: Path) -> None:
    """An answer that reads another clock than perf_counter would be refused."""
    names: dict[str, Any] = {}
    exec(IMPORTS, names)
    clock = clock_of(tmp_path)
    with clock.in_place(names):
        before = {name: read() for name, read in names["READINGS"].items()}
        names["sleep"](0.25)
        clock.spend(5000.0)
        after = {name: read() for name, read in names["READINGS"].items()}
    for name in before:
        assert after[name] - before[name] == pytest.approx(5000.25, abs=1e-4), name


def test_the_machines_clocks_are_back_after_a_call(tmp_path: Path) -> None:
    """The engine of a check has deadlines of its own."""
    names: dict[str, Any] = {}
    exec(IMPORTS, names)
    before = [time.perf_counter, time.sleep, time.time_ns, timeit.default_timer]
    own = [names[name] for name in ("perf_counter", "now_ns", "sleep", "alias")]

    def fails() -> None:
        with clock_of(tmp_path).in_place(names):
            assert names["perf_counter"] is time.perf_counter is not before[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [time.perf_counter, time.sleep, time.time_ns, timeit.default_timer] == before
    assert [names[name] for name in ("perf_counter", "now_ns", "sleep", "alias")] == own


def test_a_rank_leaves_a_collective_no_earlier_than_the_last_one_comes(tmp_path: Path) -> None:
    """Otherwise nobody would wait for a straggler."""
    early, late = clock_of(tmp_path, 0, 2), clock_of(tmp_path, 1, 2)
    waits: list[float] = []
    early.on_wait = lambda begin: waits.append(early.now() - begin)
    works = []
    for number in range(3):  # in flight together, and waited for in another order
        early.spend(1.0)
        late.spend(3.0 + number)
        works.append([clock.issued(lambda _: object())(None) for clock in (early, late)])
    wait = early.waited(lambda work: None)
    for number in (1, 0, 2):
        wait(works[number][0])
    # It came after 3 s; the late rank issued the three after 3, 7 and 12 s.
    assert waits == pytest.approx([4 + plans.SYNC, plans.SYNC, 5 - plans.SYNC], abs=1e-6)
    wait(works[0][0])
    assert len(waits) == 3  # a second wait takes no time


@pytest.mark.ranks
def test_a_clock_that_nobody_can_replace_is_no_mistake() -> None:
    """A default argument has the machine's clock before the check can put its own there."""
    own = DRILL.solution.replace("time.perf_counter()", "clock()")
    for head in ("def phase(times, name", "save_every, folder"):
        assert own.count(f"{head}):") == 1
        own = own.replace(f"{head}):", f"{head}, clock=time.perf_counter):")
    assert grade_attempt(DRILL, attempt_of_source(own), seed=1).status == "passed"

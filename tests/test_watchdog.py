"""A hang is told: which rank, where every rank stands; and nothing slow is taken for one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from torch.distributed import HashStore

from rehearsal.faults.breaks import at_read, slow_saves, slow_steps, wrap
from rehearsal.faults.jobs import Job, codes_of, finish, small, start, wait_for_step
from trainer_core.hang_report import blame, process_identity
from trainer_core.watchdog import Watchdog

TIMEOUT_S = 2.0
# Ranks cannot import a test module; its functions travel by value, as a notebook's do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def report(waits: bool, issued: int, how: str = "answered") -> dict[str, Any]:
    return {"waits": waits, "issued": issued, "how": how}


class TestBlame:
    def test_a_rank_that_does_not_answer_comes_first(self) -> None:
        """Those that answer wait for it, whatever they say of themselves."""
        assert blame([report(False, 3), report(True, 4, "mute"), report(True, 4)])[0] == [1]
        assert blame([report(False, 3), report(True, 4, "woken"), report(True, 4)])[0] == [1]

    def test_the_rank_that_does_not_wait_is_named(self) -> None:
        """Who waits in a collective is not the one that is waited for."""
        assert blame([report(True, 4), report(False, 4), report(True, 4)])[0] == [1]

    def test_if_all_wait_the_one_behind_is_named(self) -> None:
        """A rank that skipped a collective waits in the next; the others are one behind."""
        assert blame([report(True, 4), report(True, 5), report(True, 4)])[0] == [0, 2]

    def test_if_all_stand_alike_nobody_is_named(self) -> None:
        """A rank that is blamed is also ended; a guess would end an innocent one."""
        ranks, why = blame([report(True, 4), report(True, 4)])
        assert (ranks, why) == ([], "all ranks were at the same collective")

    def test_if_nobody_waits_no_collective_is_blamed(self) -> None:
        """All ranks may wait for the same disk; the network is the wrong place to look."""
        ranks, why = blame([report(False, 4), report(False, 4)])
        assert ranks == []
        assert "no rank waits in a collective" in why


def sleep() -> None:
    time.sleep(600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def keep_the_gil() -> None:
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # PyDLL keeps it
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # no signal interrupts it


def dawdle() -> None:
    time.sleep(2 * TIMEOUT_S)


def slow_save_then_slow_step() -> None:
    slow_saves(1.5 * TIMEOUT_S)
    at_read(4, 1, partial(time.sleep, 0.7 * TIMEOUT_S))  # the first save is after step 3


def fail_while_saving() -> None:
    """Have every rank raise in the step after the first save, which is in flight."""
    slow_saves(3 * TIMEOUT_S)
    steps = count(1)

    def reading(next_step: Any, batches: Any, *arguments: Any) -> Any:
        return next_step(iter([]) if next(steps) == 4 else batches, *arguments)

    wrap("next_step", reading)


def freeze_the_store() -> None:
    """As if the host of the launcher's store had stopped: it takes questions, and is silent."""
    import trainer_core.watchdog as watchdog

    watchdog.PrefixStore = FrozenStore
    at_read(8, 1, sleep)


class FrozenStore:
    def __init__(self, *_: Any) -> None:
        pass

    def set(self, *_: Any) -> None:
        pass

    def check(self, _: list[str]) -> bool:
        time.sleep(600)
        return False


def hangs_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = [
        json.loads(line)
        for path in sorted(run_dir.glob("logs/rank-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [line for line in lines if line["event"] == "hang"]


@pytest.mark.ranks
class TestHang:
    @pytest.mark.parametrize("act", [sleep, stop, keep_the_gil])
    def test_the_rank_is_named_and_the_run_goes_on(
        self, tmp_path: Path, act: Callable[[], None]
    ) -> None:
        """Until the collective's timeout nobody would know; after it, not who it was."""
        cfg = small(tmp_path, hang_timeout_s=TIMEOUT_S)
        began = time.monotonic()
        results = start(cfg, 2, partial(at_read, 8, 1, act))
        assert time.monotonic() - began < 30  # the collective's own timeout is 60 s
        assert all(result.exitcode != 0 for result in results)
        (hang,) = hangs_of(tmp_path)
        assert hang["ranks"] == [1]
        assert hang["step"] == 7
        waiting, hung = hang["reports"]
        assert waiting["waits"]
        assert waiting["name"] == "all_reduce"
        # Of the latter two no Python code could run; a C handler could.
        assert hung["how"] == {"sleep": "answered", "stop": "woken"}.get(act.__name__, "mute")
        assert f"in {act.__name__}" in hung["stack"]
        assert finish(cfg, 2)["status"] == "done"

    @pytest.mark.parametrize(
        "prepare",
        [
            partial(at_read, 1, 1, dawdle),  # as a compilation in the first step
            partial(slow_saves, 2 * TIMEOUT_S),
            slow_save_then_slow_step,
        ],
    )
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_slow_start_or_save_is_no_hang(
        self, tmp_path: Path, prepare: Callable[[], None], is_async: bool
    ) -> None:
        """A false alarm ends a healthy job, and again after each restart."""
        cfg = small(
            tmp_path,
            hang_timeout_s=TIMEOUT_S,
            async_checkpoint=is_async,
            dataset_size=50,
            max_epochs=1,
        )
        results = start(cfg, 2, prepare)
        assert codes_of(results) == [0, 0]
        assert hangs_of(tmp_path) == []

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self, tmp_path: Path) -> None:
        """A laptop that was closed, a job that a scheduler has set aside: nobody hangs."""
        cfg = small(tmp_path, hang_timeout_s=TIMEOUT_S)
        with Job(cfg, 2, slow_steps) as job:
            wait_for_step(tmp_path, 5)
            for sign in (signal.SIGSTOP, signal.SIGCONT):
                for rank in job.ranks:
                    rank.send_signal(sign)
                time.sleep(2 * TIMEOUT_S if sign is signal.SIGSTOP else 0)
            assert codes_of(job.wait()) == [0, 0]
        assert hangs_of(tmp_path) == []

    def test_a_number_that_another_process_has_got_is_spared(self) -> None:
        """A rank that is gone leaves its process id to whoever comes next."""
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            place = process_identity(stranger.pid)
            store = HashStore()
            watchdog = Watchdog.__new__(Watchdog)
            store.set("place/1", json.dumps([*place[:-1], "another start"]))
            assert watchdog.send(store, [1], signal.SIGKILL) == []
            assert stranger.poll() is None
            store.set("place/1", json.dumps(place))
            assert watchdog.send(store, [1], signal.SIGKILL) == [1]
            assert stranger.wait(10) == -signal.SIGKILL
        finally:
            stranger.kill()
            stranger.wait()

    def test_a_store_that_does_not_answer_ends_the_job_too(self, tmp_path: Path) -> None:
        """The node that stands still may be the one that hosts the store."""
        began = time.monotonic()
        results = start(small(tmp_path, hang_timeout_s=TIMEOUT_S), 2, freeze_the_store)
        assert time.monotonic() - began < 30
        assert all(result.exitcode == 1 for result in results)

    def test_a_save_in_flight_is_finished_after_an_error(self, tmp_path: Path) -> None:
        """The last good checkpoint would be an older one."""
        cfg = small(tmp_path, hang_timeout_s=TIMEOUT_S, async_checkpoint=True)
        results = start(cfg, 2, fail_while_saving)
        assert all("StopIteration" in result.failure.traceback for result in results)
        assert hangs_of(tmp_path) == []
        assert (tmp_path / "checkpoints" / "step-00000003").is_dir()

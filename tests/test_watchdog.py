"""A hang is reported: which rank, and where each rank is stuck. Slow is not a hang."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from torch.distributed import HashStore

from rehearsal.faults.breaks import at_read, signal_at_the_vote, slow_saves, slow_steps, wrap
from rehearsal.faults.jobs import Job, codes_of, finish, small, start, wait_for_step
from trainer_core.distributed import RankInfo
from trainer_core.hang_report import (
    blame,
    last_collective,
    process_identity,
    recorded_collectives,
)
from trainer_core.metrics import StepTimers
from trainer_core.watchdog import Watchdog

TIMEOUT_S = 2.0
# Ranks cannot import a test module; its functions travel by value, as a notebook's do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def report(waits: bool, issued: int, how: str = "answered") -> dict[str, Any]:
    return {"waits": waits, "issued": issued, "how": how}


class TestBlame:
    def test_a_rank_that_does_not_answer_comes_first(self) -> None:
        """The ranks that answer are waiting for it, whatever they report about themselves."""
        assert blame([report(False, 3), report(True, 4, "silent"), report(True, 4)])[0] == [1]
        assert blame([report(False, 3), report(True, 4, "woken"), report(True, 4)])[0] == [1]

    def test_the_rank_that_does_not_wait_is_named(self) -> None:
        """A rank that waits in a collective is not the one the others wait for."""
        assert blame([report(True, 4), report(False, 4), report(True, 4)])[0] == [1]

    def test_if_all_wait_the_one_behind_is_named(self) -> None:
        """A rank that skipped a collective waits in the next; the others are one behind."""
        assert blame([report(True, 4), report(True, 5), report(True, 4)])[0] == [0, 2]

    def test_if_all_ranks_are_at_the_same_place_none_is_named(self) -> None:
        """A blamed rank is also killed, and a guess would kill an innocent one."""
        ranks, why = blame([report(True, 4), report(True, 4)])
        assert (ranks, why) == ([], "all ranks were at the same collective")

    def test_if_nobody_waits_no_collective_is_blamed(self) -> None:
        """If all ranks wait for the same disk, the network is the wrong place to look."""
        ranks, why = blame([report(False, 4), report(False, 4)])
        assert ranks == []
        assert "no rank waits in a collective" in why


def entry(
    name: str, number: int, created: int, *, retired: bool = True, state: str = "completed"
) -> dict[str, Any]:
    """One collective, as a flight recorder dumps it."""
    return {
        "collective_seq_id": number,
        "profiling_name": name,
        "state": state if name.startswith("nccl") else "scheduled",  # gloo's never changes
        "retired": retired,
        "time_created_ns": created,
    }


class Dumps:
    """What the two recorders of each rank of a job dump."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def report(self, gloo: list[Any], nccl: list[Any] | None) -> dict[str, Any]:
        """A rank's report; ``nccl`` is None in a build without CUDA."""
        c10d = torch._C._distributed_c10d
        for name, entries in (("_dump_fr_trace_json", gloo), ("_dump_nccl_trace_json", nccl)):
            text = json.dumps({"entries": entries} if entries else {})
            if entries is None:
                self.monkeypatch.delattr(c10d, name, raising=False)
            else:
                dump = partial(self.dump, text)
                self.monkeypatch.setattr(c10d, name, dump, raising=False)
        return {"how": "answered", **last_collective(recorded_collectives())}

    @staticmethod
    def dump(text: str, include_collectives: bool, only_active: bool) -> str:
        assert (include_collectives, only_active) == (True, False)
        return text


class TestFlightRecorders:
    """Under NCCL the votes are in gloo's recorder and the gradients in NCCL's."""

    VOTE = entry("gloo:all_reduce", 8, 100)
    GRADIENT = entry("nccl:all_reduce", 21, 110)
    RECORDS = entry("nccl:all_reduce", 22, 120, retired=False, state="scheduled")

    @pytest.fixture
    def dumps(self, monkeypatch: pytest.MonkeyPatch) -> Dumps:
        return Dumps(monkeypatch)

    def test_a_host_that_waits_for_its_device_waits_in_the_collective(
        self, dumps: Dumps
    ) -> None:
        """Rank 0 is in tolist(), behind an all_reduce that rank 1 never issued."""
        waiting = dumps.report([self.VOTE], [self.GRADIENT, self.RECORDS])
        stuck = dumps.report([self.VOTE], [self.GRADIENT])
        assert waiting == {
            "how": "answered",
            "waits": True,
            "name": "all_reduce",
            "issued": 8 + 22,
        }
        assert not stuck["waits"]
        assert blame([waiting, stuck])[0] == [1]

    def test_if_both_wait_the_one_with_fewer_of_either_kind_is_blamed(
        self, dumps: Dumps
    ) -> None:
        """Rank 1 skipped the vote, so its gradient and rank 0's vote wait for each other."""
        vote = entry("gloo:all_reduce", 9, 130, retired=False)
        gradient = entry("nccl:all_reduce", 23, 140, retired=False, state="started")
        ahead = dumps.report([self.VOTE, vote], [self.GRADIENT, gradient])
        behind = dumps.report([self.VOTE], [self.GRADIENT, gradient])
        assert ahead["waits"]
        assert behind["waits"]
        assert blame([ahead, behind])[0] == [1]

    def test_the_oldest_that_is_not_done_is_named(self, dumps: Dumps) -> None:
        """Whatever the host queued after it has not even started."""
        stuck = entry("nccl:broadcast", 22, 120, retired=False, state="started")
        later = [
            entry("nccl:all_reduce", number, 100 + number, retired=False, state="scheduled")
            for number in range(23, 26)
        ]
        vote = entry("gloo:barrier", 9, 150, retired=False)
        report = dumps.report([self.VOTE, vote], [self.GRADIENT, stuck, *later])
        assert (report["name"], report["issued"]) == ("broadcast", 9 + 25)

    def test_what_the_device_completed_is_done_before_it_is_retired(self, dumps: Dumps) -> None:
        """torch's thread retires an entry up to 100 ms later; nobody is waiting for that."""
        done = self.RECORDS | {"state": "completed"}
        report = dumps.report([self.VOTE], [self.GRADIENT, done])
        assert (report["waits"], report["name"]) == (False, "all_reduce")

    def test_without_cuda_only_gloos_recorder_is_read(self, dumps: Dumps) -> None:
        """A CPU build has no function that dumps NCCL's."""
        report = dumps.report([self.VOTE | {"retired": False}], None)
        assert (report["waits"], report["issued"]) == (True, 8)
        assert dumps.report([], None)["name"] == "none known"


class TestOverdue:
    def test_no_step_ends_while_the_reports_are_gathered(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """SIGCONT wakes the rank that was stopped. The run could end, and close its log."""
        watchdog = watchdog_of(tmp_path)
        watchdog.beat(5)
        watchdog.beat_at -= 7 * TIMEOUT_S  # so long ago
        watchdog.ended.wait = lambda _: watchdog.late.is_set()  # type: ignore[method-assign]
        watchdog.watch()  # one look, which raises the alarm
        assert watchdog.late.is_set()
        loop = threading.Thread(target=watchdog.beat, args=(6,), daemon=True)
        loop.start()
        loop.join(0.2)
        assert loop.is_alive()
        reports = [report(True, 4) | STEP, report(False, 4) | STEP]
        assert watchdog.publish_reports(reports) == [1]
        message = capsys.readouterr().err
        assert f"no step for {7 * TIMEOUT_S:.0f} s after step 5: rank 1" in message


STEP = {"step": 5, "doing": "forward", "name": "all_reduce", "stack": "a line"}


def watchdog_of(run_dir: Path) -> Watchdog:
    """A watchdog without a launcher, so without its own threads."""
    start = SimpleNamespace(cfg=small(run_dir, hang_timeout_s=TIMEOUT_S))
    info = RankInfo(0, 0, 1, torch.device("cpu"))
    timers = StepTimers(torch.device("cpu"))
    return Watchdog(start, info, timers, 0, lambda *_, **__: None)  # type: ignore[arg-type]


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
    """As if the host of the launcher's store had stopped: it never replies."""
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
    def test_the_rank_is_named_and_the_run_continues(
        self, tmp_path: Path, act: Callable[[], None]
    ) -> None:
        """Until the collective's timeout nobody would know; after it, nobody would know who."""
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
        # A stopped rank, or one that keeps the GIL, runs no Python; its stack is written in C.
        assert hung["how"] == {"sleep": "answered", "stop": "woken"}.get(act.__name__, "silent")
        assert f"in {act.__name__}" in hung["stack"]
        assert finish(cfg, 2)["status"] == "done"

    def test_a_peer_that_stops_between_the_vote_and_the_records_ends_the_job(
        self, tmp_path: Path
    ) -> None:
        """Under NCCL a dead peer looks like this too: its connection says nothing."""
        cfg = small(tmp_path, hang_timeout_s=TIMEOUT_S, log_every=1)
        results = start(cfg, 2, partial(signal_at_the_vote, signal.SIGSTOP, 1, 8, "after"))
        assert all(result.exitcode != 0 for result in results)
        (hang,) = hangs_of(tmp_path)
        assert (hang["ranks"], hang["step"]) == ([1], 8)
        waiting, stopped = hang["reports"]
        assert waiting["waits"]
        assert "in read_records" in waiting["stack"]
        assert stopped["how"] == "woken"
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
    def test_a_slow_start_or_save_is_not_a_hang(
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

    def test_a_job_whose_ranks_all_stopped_continues(self, tmp_path: Path) -> None:
        """A closed laptop, or a job that a scheduler suspended, is not a hang."""
        cfg = small(tmp_path, hang_timeout_s=TIMEOUT_S)
        with Job(cfg, 2, slow_steps) as job:
            wait_for_step(tmp_path, 5)
            for sign in (signal.SIGSTOP, signal.SIGCONT):
                for rank in job.ranks:
                    rank.send_signal(sign)
                time.sleep(2 * TIMEOUT_S if sign is signal.SIGSTOP else 0)
            assert codes_of(job.wait()) == [0, 0]
        assert hangs_of(tmp_path) == []

    def test_a_process_id_that_was_reused_is_spared(self) -> None:
        """When a rank is gone, another process may get its ID."""
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
        """The node that hangs may be the one that hosts the store."""
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

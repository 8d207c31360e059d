"""Phases that add up, files that a kill can't corrupt, events that every reader can parse."""

from __future__ import annotations

import json
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sinks import Collected
from torch import nn

from rehearsal.engine.programs import run as run_program
from trainer_core import launch
from trainer_core.chrome_trace import append_trace
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, SampleKey, TrainingView
from trainer_core.json_lines import JsonlSink
from trainer_core.launch import run
from trainer_core.metrics import (
    PHASES,
    RankLog,
    StepTimers,
    log_rank_event,
    phase,
    summarize_timers,
)
from trainer_core.settings import UserError
from trainer_core.train import read_records, train_step

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that moves only when it is told to; in milliseconds."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(milliseconds: float) -> None:
        now[0] += milliseconds / 1e3

    return advance


class TestPhases:
    def test_they_add_up_to_the_wall_time_of_the_step(
        self, clock: Callable[[float], None]
    ) -> None:
        """In the handbook, 85% of a step's time is in no phase, the wait for data included."""
        timers = StepTimers(CPU)
        clock(1)  # before the first phase
        for _ in range(2):
            with phase(timers, "forward"):
                clock(10)
            clock(2)  # between two phases
            with phase(timers, "backward"):
                clock(20)
        with phase(timers, "checkpoint"):
            clock(5)
        clock(3)
        timers.end_step(1)
        with phase(timers, "data_wait"):
            clock(7)
        timers.end_step(2)
        (first, spent, _), (second, later, _) = timers.read()
        assert (first, second) == (1, 2)
        assert set(spent) == set(PHASES)
        measured = {name: value for name, value in spent.items() if value > 1e-6}
        expected = {"forward": 20.0, "backward": 40.0, "checkpoint": 5.0, "other": 8.0}
        assert measured == pytest.approx(expected)
        assert sum(spent.values()) == pytest.approx(73.0)
        assert {n: v for n, v in later.items() if v > 1e-6} == pytest.approx({"data_wait": 7.0})
        assert list(timers.read()) == []

    def test_no_time_falls_between_two_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Phases of all steps must add up to the run, or goodput is flattered."""
        looks: list[float] = []

        def slow_clock() -> float:
            looks.append(len(looks) * 1e-3)  # each look at it takes a millisecond
            return looks[-1]

        monkeypatch.setattr(time, "perf_counter", slow_clock)
        timers = StepTimers(CPU)
        for step in range(1, 4):
            with phase(timers, "forward"):
                pass
            timers.end_step(step)
        total = sum(sum(spent.values()) for _, spent, _ in timers.read())
        assert total == pytest.approx((looks[-1] - looks[0]) * 1e3)

    def test_the_sync_after_the_last_local_gradient_is_split_off(
        self, clock: Callable[[float], None]
    ) -> None:
        """If it counts as backward, a slow network looks like a slow model."""
        timers, model = StepTimers(CPU), nn.Linear(2, 2)
        timers.watch_gradients(model)
        inputs = torch.ones(1, 2, requires_grad=True)
        inputs.register_hook(lambda _: clock(4))  # before the weights' gradients, or after
        with phase(timers, "backward"):
            clock(10)
            model(inputs).sum().backward()
            clock(30)  # what DDP waits for at the end of the last backward pass
        timers.end_step(1)
        ((_, spent, marks),) = timers.read()
        assert spent["grad_sync"] > 29.9
        assert spent["backward"] > 9.9
        assert spent["grad_sync"] + spent["backward"] == pytest.approx(44)
        assert spent["other"] == pytest.approx(0, abs=1e-6)
        names = {event["name"] for event in timers.trace_events(marks)}
        assert names == {"backward", "grad_sync"}

    def test_a_gradient_of_an_earlier_pass_is_not_taken_for_this_ones(
        self, clock: Callable[[float], None]
    ) -> None:
        """A stale stamp would bill everything since then to the sync."""
        timers, model = StepTimers(CPU), nn.Linear(2, 2)
        timers.watch_gradients(model)
        with phase(timers, "backward"):
            model(torch.ones(1, 2)).sum().backward()
        timers.end_step(1)
        clock(50)
        with phase(timers, "backward"):
            clock(10)  # a pass in which no gradient of the model is computed
        timers.end_step(2)
        _, (_, spent, _) = timers.read()
        assert (spent["grad_sync"], spent["backward"]) == pytest.approx((0, 10))

    def test_a_step_without_peers_has_no_sync(self, clock: Callable[[float], None]) -> None:
        """A number where nothing is measured is worse than none."""
        timers = StepTimers(CPU)
        with phase(timers, "backward"):
            nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
            clock(10)
        timers.end_step(1)
        ((_, spent, _),) = timers.read()
        assert (spent["grad_sync"], spent["backward"]) == pytest.approx((0, 10))

    def test_trace_events_are_where_the_phases_were(
        self, clock: Callable[[float], None]
    ) -> None:
        """A timeline of two ranks is only readable on one clock."""
        began = time.time()
        timers = StepTimers(CPU)
        with phase(timers, "forward"):
            clock(10)
        clock(5)
        with phase(timers, "optimizer"):
            clock(2)
        timers.end_step(1)
        ((_, _, marks),) = timers.read()
        forward, optimizer = timers.trace_events(marks)
        assert (forward["name"], forward["dur"]) == ("forward", pytest.approx(10e3))
        assert optimizer["ts"] - forward["ts"] == pytest.approx(15e3, abs=1)
        assert abs(forward["ts"] / 1e6 - began) < 5

    @pytest.mark.cuda
    # torch says at every call that the mode is a prototype.
    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    @pytest.mark.skipif(not HAS_CUDA, reason="not checked: phases by CUDA events")
    def test_on_cuda_the_work_is_billed_to_the_phase_that_asked_for_it(self) -> None:
        """By the host's clock, the forward pass is free and the optimizer pays for all."""
        timers = StepTimers(torch.device("cuda"))
        big = torch.ones(4096, 4096, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            with phase(timers, "forward"):
                for _ in range(50):
                    big @ big
            with phase(timers, "optimizer"):
                torch.ones(4, device="cuda").add_(1)
            timers.end_step(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        ((_, spent, _),) = timers.read()
        assert spent["forward"] > 10 * spent["optimizer"]


class FakeDevice:
    """A device that works through a queue, and the host that fills it; in milliseconds."""

    def __init__(self) -> None:
        self.queued_ms = 0.0  # the device's clock when it has done all that is queued
        self.known_ms = -1.0  # up to here, the host knows that the device is done

    def synchronize(self) -> None:
        self.known_ms = self.queued_ms


class FakeEvent:
    """A CUDA event on ``device``: it has a time only once the host has waited for it."""

    device = FakeDevice()

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.device.queued_ms += 1e-3  # so that no two events coincide
        self.at_ms = self.device.queued_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.known_ms

    def synchronize(self) -> None:
        self.device.known_ms = max(self.device.known_ms, self.at_ms)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.query(), "torch raises: both events must be completed"
        assert end.query(), "torch raises: both events must be completed"
        return end.at_ms - self.at_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """What torch.cuda.Event is recorded on, and StepTimers measures by."""
    FakeEvent.device = FakeDevice()
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    on_device = StepTimers.__init__
    monkeypatch.setattr(
        StepTimers, "__init__", lambda self, _: on_device(self, torch.device("cuda"))
    )
    return FakeEvent.device


def queue_steps(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, step_ms: float) -> None:
    """Have each step of a run queue work, and each reading of records wait for it."""

    def stepping(*arguments: Any) -> torch.Tensor:
        with phase(arguments[0].timers, "forward"):
            device.queued_ms += step_ms
        return train_step(*arguments)

    def reading(*arguments: Any) -> Any:
        device.synchronize()
        return read_records(*arguments)

    monkeypatch.setattr(launch, "train_step", stepping)
    monkeypatch.setattr(launch, "read_records", reading)


class TestDeviceTime:
    """Whole runs whose timers use events that a fake device records."""

    STEP_MS = 4000.0  # far more than the host takes for a whole run

    def events_of(self, run_dir: Path, log_every: int) -> list[dict[str, Any]]:
        cfg = TrainConfig(
            run_dir=run_dir,
            device="cpu",
            dataset_size=160,
            micro_batch_size=16,
            max_epochs=1,
            log_every=log_every,
            trace_steps=100,
        )
        run(cfg)
        lines = (run_dir / "logs/rank-0.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == "train_progress"]

    @pytest.mark.parametrize("log_every", [1, 4])
    def test_every_step_is_reported_in_its_own_window(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        device: FakeDevice,
        log_every: int,
    ) -> None:
        """The last step's event is recorded just before it is queried, so it is easily lost."""
        queue_steps(monkeypatch, device, self.STEP_MS)
        events = self.events_of(tmp_path / "run", log_every)
        assert [event["step"] for event in events] == [*range(log_every, 10, log_every), 10]
        for event in events:
            assert event["phases"]["forward"]["p50"] >= self.STEP_MS
        trace = json.loads((tmp_path / "run/traces/rank-0.json").read_text())
        traced = [
            event["args"]["step"] for event in trace if event["dur"] >= 1e3 * self.STEP_MS
        ]
        assert traced == list(range(1, 11))

    def test_the_ledger_has_the_devices_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: FakeDevice
    ) -> None:
        """The host queues a step in no time; goodput would call the rest of the run logging."""
        queue_steps(monkeypatch, device, self.STEP_MS)
        began = time.time()
        self.events_of(tmp_path / "run", log_every=4)
        text = (tmp_path / "run/ledger/rank-0.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 11))
        step_s = self.STEP_MS / 1e3
        for line in lines:
            assert line["step_s"] == pytest.approx(step_s, rel=1e-3)
        # Steps that are read together ended one after the other, the last at the reading.
        ends = [line["time"] for line in lines]
        for first, last in ((0, 3), (4, 7), (8, 9)):
            for at in range(first, last):
                assert ends[at + 1] - ends[at] == pytest.approx(step_s, rel=1e-3)
        assert began < ends[-1] < time.time()

    def test_a_stop_at_a_step_that_is_not_finite_leaves_its_ledger_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: FakeDevice
    ) -> None:
        """The message says to look at the step's samples, and only that line lists them."""
        queue_steps(monkeypatch, device, self.STEP_MS)
        fetch = TrainingView.__getitems__
        loaded: list[list[int]] = []

        def poisoned(self: TrainingView, keys: Sequence[SampleKey]) -> MicroBatch:
            batch = fetch(self, keys)
            if keys:
                loaded.append([key.sample for key in keys])
            if len(loaded) == 6:
                batch.inputs.fill_(math.nan)
            return batch

        monkeypatch.setattr(TrainingView, "__getitems__", poisoned)
        with pytest.raises(UserError, match="step 6: loss nan"):
            self.events_of(tmp_path / "run", log_every=4)
        text = (tmp_path / "run/ledger/rank-0.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert [line["samples"] for line in lines] == loaded[:6]
        assert [line["step"] for line in lines if line.get("skipped")] == [6]


class TestRunPhases:
    """Whole runs of a few steps, with one delay in a known place."""

    DELAY_MS = 15.0

    def phases(self, tmp_path: Path, **changes: Any) -> dict[str, Any]:
        sizes: dict[str, Any] = {"dataset_size": 160, "micro_batch_size": 16, "max_epochs": 1}
        sizes |= {"device": "cpu", "log_every": 10, "run_dir": tmp_path / "run"}
        run(TrainConfig(**(sizes | changes)))
        log = (tmp_path / "run/logs/rank-0.jsonl").read_text().splitlines()
        (progress,) = [e for e in map(json.loads, log) if e["event"] == "train_progress"]
        phases: dict[str, Any] = progress["phases"]
        assert set(phases) == set(PHASES)
        return phases

    def test_a_slow_dataset_is_seen_in_data_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The most common slow run, and the handbook does not time it at all."""
        fetch = TrainingView.__getitems__

        def slow(self: TrainingView, keys: Sequence[SampleKey]) -> MicroBatch:
            time.sleep(TestRunPhases.DELAY_MS / 1e3)
            return fetch(self, keys)

        monkeypatch.setattr(TrainingView, "__getitems__", slow)
        phases = self.phases(tmp_path)
        assert phases["data_wait"]["p50"] >= self.DELAY_MS
        others = sum(times["p50"] for name, times in phases.items() if name != "data_wait")
        assert others < phases["data_wait"]["p50"]

    def test_a_slow_disk_is_seen_in_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A save every few steps can cost more than the steps."""
        real = torch.save

        def slow(*arguments: Any, **options: Any) -> None:
            time.sleep(TestRunPhases.DELAY_MS / 1e3)
            real(*arguments, **options)

        monkeypatch.setattr(torch, "save", slow)
        phases = self.phases(tmp_path, checkpoint_every_steps=1)
        assert phases["checkpoint"]["p50"] >= 2 * self.DELAY_MS  # state and random streams
        assert phases["checkpoint"]["max"] >= phases["checkpoint"]["p95"]

    @pytest.mark.parametrize("name", ["forward", "backward"])
    def test_a_slow_model_is_seen_where_it_is_slow(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """Forward, backward and optimizer have different remedies."""

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
                time.sleep(TestRunPhases.DELAY_MS / 1e3 if name == "forward" else 0)
                return inputs.clone()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                time.sleep(TestRunPhases.DELAY_MS / 1e3 if name == "backward" else 0)
                return gradient

        gelu = nn.GELU.forward
        monkeypatch.setattr(nn.GELU, "forward", lambda self, x: Slow.apply(gelu(self, x)))
        phases = self.phases(tmp_path, num_layers=1)
        assert phases[name]["p50"] >= self.DELAY_MS
        others = [times["p50"] for other, times in phases.items() if other != name]
        assert max(others) < self.DELAY_MS

    def test_the_named_phases_cover_nearly_the_whole_step(self, tmp_path: Path) -> None:
        """You can't find time in the phases that is in none of them."""
        phases = self.phases(
            tmp_path, input_dim=256, hidden_dim=1024, dataset_size=640, micro_batch_size=64
        )
        total = sum(times["p50"] for times in phases.values())
        assert phases["other"]["p50"] <= 0.1 * total


class TestSummary:
    def test_percentiles_are_those_of_the_steps(self) -> None:
        """A mean hides that one step in twenty takes a second."""
        steps = [dict.fromkeys(PHASES, 0.0) | {"forward": float(ms)} for ms in range(101)]
        summary = summarize_timers(steps)
        assert list(summary) == list(PHASES)
        assert summary["forward"] == {"p50": 50.0, "p95": 95.0, "max": 100.0}
        assert summary["backward"] == {"p50": 0.0, "p95": 0.0, "max": 0.0}

    def test_a_spike_shows_in_the_maximum_only(self) -> None:
        """The kind of slowness that a mean smears over all steps."""
        steps = [dict.fromkeys(PHASES, 1.0)] * 99 + [dict.fromkeys(PHASES, 1000.0)]
        assert summarize_timers(steps)["data_wait"] == {"p50": 1.0, "p95": 1.0, "max": 1000.0}

    def test_without_a_step_there_is_no_number(self) -> None:
        """On CUDA no step may be finished yet when the first event is due."""
        summary = summarize_timers([])
        assert all(not times for times in summary.values())
        json.dumps(summary, allow_nan=False)


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestJsonlSink:
    def test_the_operating_system_has_a_line_when_emit_returns(self, tmp_path: Path) -> None:
        """The handbook's log is empty after 60 steps and a kill."""
        sink = JsonlSink(tmp_path / "logs" / "x.jsonl")
        for step in range(3):
            sink.emit({"step": step})
            assert len(lines_of(tmp_path / "logs" / "x.jsonl")) == step + 1
        sink.close()

    @pytest.mark.ranks
    def test_lines_survive_a_kill(self, tmp_path: Path) -> None:
        """No handler runs and no buffer is flushed."""
        path = tmp_path / "x.jsonl"
        code = (
            "import os, sys; from pathlib import Path\n"
            "from trainer_core.json_lines import JsonlSink\n"
            "sink = JsonlSink(Path(sys.argv[1]))\n"
            "for step in range(50): sink.emit({'step': step})\n"
            "os.kill(os.getpid(), 9)\n"
        )
        assert run_program("-c", code, str(path)).returncode == -9
        assert [line["step"] for line in lines_of(path)] == list(range(50))

    def test_a_truncated_line_corrupts_no_other(self, tmp_path: Path) -> None:
        """Glued to the truncated one, the next attempt's first line is lost as well."""
        path = tmp_path / "x.jsonl"
        whole = b'{"step": 1}\n{"step": 2, "loss": 1.5}\n'
        for size in range(len(whole) + 1):
            path.write_bytes(whole[:size])
            sink = JsonlSink(path)
            sink.emit({"step": 3})
            sink.close()
            *earlier, last = path.read_bytes().splitlines()
            assert json.loads(last) == {"step": 3}
            found = []
            for line in earlier:
                try:
                    found.append(json.loads(line)["step"])
                except ValueError:
                    assert whole[:size].endswith(line)
            # A line that lacks only its newline counts.
            assert found == [1][: size >= 11] + [2][: size >= len(whole) - 1]
            assert b"" not in earlier

    def test_an_earlier_attempt_is_continued(self, tmp_path: Path) -> None:
        """Evidence of the attempt that died must not be overwritten."""
        for attempt in range(3):
            sink = JsonlSink(tmp_path / "x.jsonl")
            sink.emit({"attempt": attempt})
            sink.close()
        assert [line["attempt"] for line in lines_of(tmp_path / "x.jsonl")] == [0, 1, 2]


class TestEvents:
    def test_an_event_says_who_when_and_where(self) -> None:
        """Logs of many ranks are merged, so each line must be complete by itself."""
        sink = Collected()
        common = {"rank": 1, "local_rank": 1, "attempt": 2, "run_id": "ab"}
        began = time.time()
        log_rank_event(RankLog([sink], common), "x", step=12, epoch=3, loss=0.5)
        (record,) = sink.records
        assert began - 1 <= record["time"] <= time.time() + 1
        rest = {key: value for key, value in record.items() if key != "time"}
        assert rest == {**common, "event": "x", "step": 12, "epoch": 3, "loss": 0.5}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_number_that_json_lacks_becomes_null(self, tmp_path: Path, value: float) -> None:
        """Many readers refuse a file with NaN in it, just when you need it most."""
        sink = JsonlSink(tmp_path / "x.jsonl")
        log_rank_event(RankLog([sink], {}), "x", step=1, epoch=0, loss=value, lr=1.0)
        sink.close()

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        record = json.loads((tmp_path / "x.jsonl").read_text(), parse_constant=refuse)
        assert (record["loss"], record["lr"]) == (None, 1.0)

    def test_a_common_field_that_json_lacks_becomes_null_too(self) -> None:
        """A NaN that all events share would make every line of the log unreadable."""
        sink = Collected()
        common: dict[str, Any] = {"rank": 0, "lr": math.nan, "host": {"load": [math.inf, 0.5]}}
        log_rank_event(RankLog([sink], common), "x", step=1, epoch=0)
        (record,) = sink.records
        assert record["lr"] is None
        assert record["host"] == {"load": [None, 0.5]}
        assert math.isnan(common["lr"])  # the caller's mapping is not what is cleaned

    def test_every_sink_gets_every_event(self) -> None:
        """An exporter sees what the log file has."""
        sinks = [Collected(), Collected()]
        log = RankLog(sinks, {"rank": 0})
        for step in range(3):
            log_rank_event(log, "x", step=step, epoch=0)
        assert [record["step"] for record in sinks[0].records] == [0, 1, 2]
        assert sinks[0].records == sinks[1].records

    def test_a_run_gives_its_events_to_the_callers_sinks(self, tmp_path: Path) -> None:
        """A vendor's exporter needs no change in the trainer."""
        sink = Collected()
        cfg = TrainConfig(
            run_dir=tmp_path / "run", dataset_size=32, max_epochs=1, log_every=1, device="cpu"
        )
        run(cfg, sinks=[sink])
        written = lines_of(tmp_path / "run/logs/rank-0.jsonl")
        assert sink.records == written
        names = [record["event"] for record in written]
        assert names[0] == "run_start"
        assert names[-1] == "run_end"
        assert names.count("train_progress") == 2
        assert {r["run_id"] for r in written} == {r["run_id"] for r in written[:1]}
        progress = next(record for record in written if record["event"] == "train_progress")
        wanted = {"loss", "lr", "grad_norm", "samples_per_s", "phases", "step", "epoch", "rank"}
        assert wanted <= set(progress)

    def test_a_sink_that_fails_is_dropped_and_training_continues(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A port that is taken must not end a job, or look like a dead peer."""

        class Failing(Collected):
            def emit(self, record: Mapping[str, Any]) -> None:
                super().emit(record)
                raise ConnectionRefusedError("no collector")

            def close(self) -> None:
                raise RuntimeError("it is gone")

        sinks = [Failing(), Collected()]
        cfg = TrainConfig(run_dir=tmp_path / "run", dataset_size=32, max_epochs=1, device="cpu")
        assert run(cfg, sinks=sinks)["status"] == "done"
        assert len(sinks[0].records) == 1
        lines = lines_of(tmp_path / "run/logs/rank-0.jsonl")
        assert sinks[1].records == lines
        (failed,) = [line for line in lines if line["event"] == "sink_failed"]
        assert (failed["sink"], "no collector" in failed["error"]) == ("Failing", True)
        assert capsys.readouterr().err.count("Failing failed and gets no more events") == 1


class Full:
    """A stream on a full disk."""

    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_terminal_that_fails_is_dropped_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk under it ended the run without a word: there was no room for one."""
    for name in ("stdout", "stderr"):  # of progress, and of the report that it failed
        monkeypatch.setattr(sys, name, Full())
    cfg = TrainConfig(run_dir=tmp_path / "run", dataset_size=32, max_epochs=2, device="cpu")
    assert run(cfg)["status"] == "done"
    lines = lines_of(tmp_path / "run/logs/rank-0.jsonl")
    (failed,) = [line for line in lines if line["event"] == "sink_failed"]
    assert (failed["sink"], "No space left" in failed["error"]) == ("Console", True)


def events_of(count: int, name: str = "forward") -> list[dict[str, Any]]:
    return [{"name": name, "ts": 1.5e15 + i, "dur": 100.25 * i} for i in range(count)]


def append_step(
    path: Path, step: int, events: list[dict[str, Any]], rank: int = 0, attempt: int = 0
) -> None:
    append_trace(path, events, pid=rank, args={"step": step, "attempt": attempt})


class TestTrace:
    def test_it_is_valid_after_every_append(self, tmp_path: Path) -> None:
        """A viewer opened while the job runs must not fail."""
        path, expected = tmp_path / "traces" / "rank-3.json", []
        for attempt in (0, 1):
            for step in range(1, 40):
                append_step(path, step, events_of(7), rank=3, attempt=attempt)
                expected += [(attempt, step)] * 7
                found = json.loads(path.read_text())
                places = [(e["args"]["attempt"], e["args"]["step"]) for e in found]
                assert places == expected
        event = found[-1]
        assert {key: event[key] for key in ("name", "ph", "pid", "tid")} == {
            "name": "forward",
            "ph": "X",
            "pid": 3,
            "tid": 0,
        }
        assert (event["ts"], event["dur"]) == (1.5e15 + 6, 601.5)

    @settings(max_examples=120)
    @given(before=st.lists(st.integers(1, 60), min_size=1, max_size=4), data=st.data())
    def test_truncated_anywhere_it_is_valid_again_after_the_next_append(
        self, before: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """A kill can truncate it at any byte, and no viewer opens an array without its end."""
        path = tmp_path_factory.mktemp("trace") / "x.json"
        for step, count in enumerate(before):
            append_step(path, step, events_of(count))
        text = path.read_bytes()
        cut = data.draw(st.integers(0, len(text)), label="cut")
        path.write_bytes(text[:cut])
        append_step(path, 99, events_of(2, "optimizer"), attempt=1)
        found = json.loads(path.read_text())
        whole = [event for event in json.loads(text) if event]
        kept = text[:cut].count(b"}}")
        assert found[:-2] == whole[:kept]
        assert [event["args"]["step"] for event in found[-2:]] == [99, 99]

    def test_a_short_file_is_repaired_wherever_it_was_truncated(self, tmp_path: Path) -> None:
        """Every byte, the first and the last included."""
        path = tmp_path / "x.json"
        append_step(path, 1, events_of(3))
        text = path.read_bytes()
        for cut in range(len(text) + 1):
            path.write_bytes(text[:cut])
            append_step(path, 2, events_of(1), attempt=1)
            assert len(json.loads(path.read_text())) == text[:cut].count(b"}}") + 1

    def test_a_step_without_events_leaves_it_valid(self, tmp_path: Path) -> None:
        """A trailing comma is not valid JSON."""
        path = tmp_path / "x.json"
        for step, count in enumerate((0, 2, 0, 1)):
            append_step(path, step, events_of(count))
        assert [e["args"]["step"] for e in json.loads(path.read_text())] == [1, 1, 3]

    def test_a_long_file_is_not_read_completely(self, tmp_path: Path) -> None:
        """At a gigabyte, each append would cost more than the step."""
        path = tmp_path / "x.json"
        append_step(path, 1, events_of(2))
        text = path.read_text()
        first = text[2 : text.index("}}") + 2]
        with path.open("w") as file:
            file.write("[\n" + ",\n".join([first] * 50_000) + "\n]")
        tracemalloc.start()
        try:
            append_step(path, 2, events_of(2))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**18
        assert len(json.loads(path.read_text())) == 50_002

    def test_a_run_traces_the_steps_that_it_is_told_to(self, tmp_path: Path) -> None:
        """A trace of a whole night's steps would be larger than the checkpoints."""
        sizes: dict[str, Any] = {"dataset_size": 160, "max_epochs": 1, "log_every": 3}
        cfg = TrainConfig(run_dir=tmp_path / "run", device="cpu", trace_steps=4, **sizes)
        run(cfg)
        found = json.loads((tmp_path / "run/traces/rank-0.json").read_text())
        assert {event["args"]["step"] for event in found} == {1, 2, 3, 4}
        assert {"data_wait", "forward", "backward", "optimizer"} <= {e["name"] for e in found}
        for event in found:
            assert event["dur"] >= 0
            assert abs(event["ts"] / 1e6 - time.time()) < 600

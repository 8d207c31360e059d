# Derived by scripts/sync_notebooks.py; edit trainer_core/metrics.py, json_lines.py.
from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

# "other" is the rest of the step: logging, the ledger, the loop itself.
PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()
Stamp = Any  # seconds on a CPU, a torch.cuda.Event on CUDA


class StepTimers:
    """Timestamps at the boundaries of phases, converted to milliseconds once they are complete.

    On a CPU a stamp is a clock reading. On CUDA it is an event on the stream: the host runs
    ahead of the device, so its clock would charge the work to whichever phase waits next. The
    time between two events is what the device did or waited for, so on CUDA too the phases add
    up to the step.
    """

    def __init__(self, device: torch.device) -> None:
        self.uses_events = device.type == "cuda"
        self.marks: list[tuple[str, Stamp, Stamp]] = []
        self.last_gradient: Stamp | None = None
        self.unread: deque[tuple[int, Stamp, Stamp, list[tuple[str, Stamp, Stamp]]]] = deque()
        self.origin_s = time.time()
        self.origin = self.stamp()
        self.step_start = self.origin
        self.doing = ""  # the current phase; between two phases, the one that just ended

    def stamp(self) -> Stamp:
        """Now, on this device's clock. Does not wait for the device."""
        if not self.uses_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, start: Stamp, end: Stamp) -> float:
        """Milliseconds from one stamp to the other."""
        return float(start.elapsed_time(end) if self.uses_events else (end - start) * 1e3)

    def watch_gradients(self, model: nn.Module) -> None:
        """Stamp the last local gradient; the rest of the backward phase is exposed sync."""

        def ready(_: torch.Tensor) -> None:
            self.last_gradient = self.stamp()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(ready)

    def end_step(self, step: int) -> None:
        """Close the step. The next one starts here, so no time is lost between two steps."""
        now = self.stamp()
        self.unread.append((step, self.step_start, now, self.marks))
        self.step_start = now
        self.marks = []

    def read(self) -> Iterator[tuple[int, dict[str, float], list[tuple[str, Stamp, Stamp]]]]:
        """The steps since the last call: step, milliseconds per phase, stamps.

        On CUDA the host waits for the last one's end. Call this where the host has waited for
        the step's results anyway: then only the event itself is left to wait for.
        """
        if self.uses_events and self.unread:
            self.unread[-1][2].synchronize()
        while self.unread:
            step, start, end, marks = self.unread.popleft()
            spent = dict.fromkeys(PHASES, 0.0)
            for name, begin, finish in marks:
                spent[name] += self.between_ms(begin, finish)
            spent["other"] = self.between_ms(start, end) - sum(spent.values())
            yield step, spent, marks


class phase:  # read as a statement: with phase(timers, "forward")
    """Add the block's time to a phase of the current step. Blocks may repeat, but not nest.

    A class because it is entered six times a step, and contextlib's generator is slower.
    """

    __slots__ = ("name", "start", "timers")

    def __init__(self, timers: StepTimers, name: str) -> None:
        self.timers = timers
        self.name = name

    def __enter__(self) -> None:
        self.timers.doing = self.name
        self.start = self.timers.stamp()

    def __exit__(self, *_: object) -> None:
        timers = self.timers
        end = timers.stamp()
        if self.name == "backward" and timers.last_gradient is not None:
            timers.marks.append(("grad_sync", timers.last_gradient, end))
            end = timers.last_gradient
            timers.last_gradient = None
        timers.marks.append((self.name, self.start, end))


def summarize_timers(steps: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Each phase's p50, p95 and max in milliseconds, by nearest rank; a mean hides spikes."""
    if not steps:
        return {}
    fractions = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    places = {name: math.ceil(part * len(steps)) - 1 for name, part in fractions.items()}
    summary = {}
    for phase_name in PHASES:
        column = sorted(step[phase_name] for step in steps)
        summary[phase_name] = {name: round(column[at], 4) for name, at in places.items()}
    return summary


class JsonlSink:
    """One JSON object per line, handed to the operating system at once: it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab+", buffering=0)
        # A kill may have truncated the last line; the next line must not continue it.
        self.file.seek(max(0, path.stat().st_size - 1))
        if self.file.read() not in (b"", b"\n"):
            self.file.write(b"\n")

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line. A kill may truncate it, but no other line."""
        line = json.dumps(record).encode() + b"\n"
        # One write, so one kill cuts one line. A full disk silently takes part of the line, and
        # raises only when asked to take the rest.
        while line:
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Sink(Protocol):
    """A destination for a rank's events. An exporter for a vendor is one more of these.

    With asynchronous saves, ``checkpoint_saved`` comes from the thread that writes checkpoints.

        class SlackSink:
            def emit(self, record):
                if record["event"] == "hang":
                    post(f"step {record['step']}: {record['reason']}")

            def close(self):
                pass

        run(cfg, sinks=[SlackSink()])
    """

    def emit(self, record: Mapping[str, Any]) -> None:
        """Take one event: a mapping with at least time, event, rank, step and epoch."""

    def close(self) -> None:
        """Flush whatever is buffered."""


class RankLog(NamedTuple):
    """The sinks of one rank, and the fields that all of its events share."""

    sinks: Sequence[Sink]
    common: Mapping[str, Any]


def finite_or_null(value: Any) -> Any:
    """The value with None for each number that JSON lacks (NaN, infinity), at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite_or_null(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(part) for part in value]
    return value


def log_rank_event(log: RankLog, event: str, *, step: int, epoch: int, **fields: Any) -> None:
    """Send one event to all sinks of this rank. A number that JSON lacks (NaN) becomes null."""
    record = {"time": time.time(), "event": event, **log.common, "step": step, "epoch": epoch}
    for sink in log.sinks:
        sink.emit(finite_or_null(record | fields))

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
    """Stamps at the borders of phases; they become milliseconds when nobody has to wait."""

    def __init__(self, device: torch.device) -> None:
        self.uses_events = device.type == "cuda"
        self.marks: list[tuple[str, Stamp, Stamp]] = []
        self.last_gradient: Stamp | None = None
        self.unread: deque[tuple[int, Stamp, Stamp, list[tuple[str, Stamp, Stamp]]]] = deque()
        self.origin_s, self.origin = time.time(), self.stamp()
        self.step_start = self.origin
        self.doing = ""  # the phase that was entered last

    def stamp(self) -> Stamp:
        """Now, as this device tells it. Does not wait for the device."""
        if not self.uses_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, start: Stamp, end: Stamp) -> float:
        """Milliseconds from one stamp to another."""
        return float(start.elapsed_time(end) if self.uses_events else (end - start) * 1e3)

    def watch_gradients(self, model: nn.Module) -> None:
        """Remember when the last local gradient was ready; what follows is exposed sync."""

        def ready(_: torch.Tensor) -> None:
            self.last_gradient = self.stamp()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(ready)

    def end_step(self, step: int) -> None:
        """Close the step; the next one begins here, so no time falls between two steps."""
        now = self.stamp()
        self.unread.append((step, self.step_start, now, self.marks))
        self.step_start, self.marks = now, []

    def read(self) -> Iterator[tuple[int, dict[str, float], list[tuple[str, Stamp, Stamp]]]]:
        """Steps that the device has finished: step, milliseconds per phase, stamps."""
        while self.unread and (not self.uses_events or self.unread[0][2].query()):
            step, start, end, marks = self.unread.popleft()
            spent = dict.fromkeys(PHASES, 0.0)
            for name, begin, finish in marks:
                spent[name] += self.between_ms(begin, finish)
            spent["other"] = self.between_ms(start, end) - sum(spent.values())
            yield step, spent, marks


class phase:  # read as a statement: with phase(timers, "forward")
    """Bill the block to a phase of the current step. Blocks may repeat, but not nest."""

    __slots__ = ("name", "start", "timers")

    def __init__(self, timers: StepTimers, name: str) -> None:
        self.timers, self.name = timers, name

    def __enter__(self) -> None:
        self.timers.doing, self.start = self.name, self.timers.stamp()

    def __exit__(self, *_: object) -> None:
        timers, end = self.timers, self.timers.stamp()
        if self.name == "backward" and timers.last_gradient is not None:
            timers.marks.append(("grad_sync", timers.last_gradient, end))
            end, timers.last_gradient = timers.last_gradient, None
        timers.marks.append((self.name, self.start, end))


def summarize_timers(steps: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """p50, p95, max of each phase in milliseconds, by nearest rank: a mean hides the spikes."""
    ranks = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    places = {name: math.ceil(fraction * len(steps)) - 1 for name, fraction in ranks.items()}
    columns = {phase: sorted(step[phase] for step in steps) for phase in PHASES if steps}
    return {
        phase: {name: round(column[place], 4) for name, place in places.items()}
        for phase, column in columns.items()
    }


class JsonlSink:
    """One JSON object a line, handed to the kernel at once: it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab+", buffering=0)
        # A kill may have cut the last line; the next one must not continue it.
        self.file.seek(max(0, path.stat().st_size - 1))
        if self.file.read() not in (b"", b"\n"):
            self.file.write(b"\n")

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line in one write, so that a kill cuts no line but the last."""
        line = json.dumps(record).encode() + b"\n"
        while line:  # a full disk takes a part without a word; for the rest it raises
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Sink(Protocol):
    """A place for a rank's events. An exporter for a vendor is one more of these."""

    def emit(self, record: Mapping[str, Any]) -> None:
        """Take one event: a flat mapping with at least time, event, rank, step."""

    def close(self) -> None:
        """Hand over what is buffered."""


class RankLog(NamedTuple):
    """The sinks of one rank, and what each of its events carries."""

    sinks: Sequence[Sink]
    common: Mapping[str, Any]


def log_rank_event(log: RankLog, event: str, *, step: int, epoch: int, **fields: Any) -> None:
    """Send one event to all sinks of this rank. A number that JSON lacks (NaN) becomes null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
    record = {"time": time.time(), "event": event, **log.common, "step": step, "epoch": epoch}
    for sink in log.sinks:
        sink.emit(record | finite)

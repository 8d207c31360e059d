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
        raise NotImplementedError

    def end_step(self, step: int) -> None:
        """Close the step. The next one starts here, so no time is lost between two steps."""
        raise NotImplementedError

    def read(self) -> Iterator[tuple[int, dict[str, float], list[tuple[str, Stamp, Stamp]]]]:
        """The steps since the last call: step, milliseconds per phase, stamps.

        On CUDA the host waits for the last one's end. Call this where the host has waited for
        the step's results anyway: then only the event itself is left to wait for.
        """
        raise NotImplementedError


class phase:  # read as a statement: with phase(timers, "forward")
    """Add the block's time to a phase of the current step. Blocks may repeat, but not nest.

    A class because it is entered six times a step, and contextlib's generator is slower.
    """

    __slots__ = ("name", "start", "timers")

    def __init__(self, timers: StepTimers, name: str) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError


def summarize_timers(steps: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Each phase's p50, p95 and max in milliseconds, by nearest rank; a mean hides spikes."""
    raise NotImplementedError


class JsonlSink:
    """One JSON object per line, handed to the operating system at once: it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        raise NotImplementedError

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line. A kill may truncate it, but no other line."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError


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


def log_rank_event(log: RankLog, event: str, *, step: int, epoch: int, **fields: Any) -> None:
    """Send one event to all sinks of this rank. A number that JSON lacks (NaN) becomes null."""
    raise NotImplementedError

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

# "other" is the rest of the step: logging, the ledger, the loop itself.
PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()


class StepTimers:
    """Where the time of each step went, in milliseconds per phase.

    Args:
        device: the CPU, in this drill.
    """

    def __init__(self, device: torch.device) -> None:
        raise NotImplementedError

    def end_step(self, step: int) -> None:
        """Close the step; the next one begins here."""
        raise NotImplementedError

    def read(self) -> Iterator[tuple[Any, ...]]:
        """Closed steps, each once: the step, then milliseconds by phase, all of PHASES."""
        raise NotImplementedError


def phase(timers: StepTimers, name: str) -> Any:
    """Bill the block of a ``with`` to a phase of the current step. Blocks may repeat."""
    raise NotImplementedError


def summarize_timers(steps: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By phase p50, p95 and max over the steps, by nearest rank; {} without steps."""
    raise NotImplementedError


class JsonlSink:
    """One JSON object a line, which survives a kill of this process and the next start."""

    def __init__(self, path: Path) -> None:
        raise NotImplementedError

    def emit(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError


class RankLog(NamedTuple):
    """The sinks of one rank, and what each of its events carries."""

    sinks: Sequence[Any]
    common: Mapping[str, Any]


def log_rank_event(log: RankLog, event: str, *, step: int, epoch: int, **fields: Any) -> None:
    """Send one event to all sinks. A number that JSON lacks (NaN) becomes null."""
    raise NotImplementedError

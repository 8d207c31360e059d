"""One rank's event log: a JSONL file, rank 0's terminal, and the caller's exporters.

Supports cell 8 (launch).
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

# %% active="py"
from trainer_core.collectives import DeferredErrors
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.distributed import RankInfo
from trainer_core.hang_report import start_ticks
from trainer_core.json_lines import JsonlSink
from trainer_core.metrics import RankLog, Sink, log_rank_event
from trainer_core.run_folder import Start
from trainer_core.settings import flag_name


# %%
def print_status(text: str) -> None:
    """Print a line for the person at rank 0's terminal."""
    print(text, file=sys.stderr, flush=True)


# How rank 0's terminal shows an event.
LINES = {
    "run_start": "{run_dir}, attempt {attempt}, step {step}, world_size {world_size}, "
    "total_steps {total_steps}, global_batch_size {global_batch_size}",
    "checkpoint_rejected": "{folder} is damaged and was set aside: {reason}",
    "config_changed": "changed settings, as [before, now]: {changes}",
    "settings_unread": "no effect in this run: {flags}",
    "train_progress": "step {step}/{total_steps}  loss {loss:.4f}  "
    "{samples_per_s:.0f} samples/s  {left} left",
}


class Console:
    """Rank 0's terminal: how the attempt starts, then progress, speed and time left."""

    def emit(self, record: Mapping[str, Any]) -> None:
        """Print the event if ``LINES`` has a line for it."""
        if record["event"] in LINES:
            left = timedelta(seconds=round(record.get("seconds_left", 0)))
            shown = {k: math.nan if value is None else value for k, value in record.items()}
            print_status(LINES[record["event"]].format(**shown, left=left))

    def close(self) -> None:
        """Nothing is buffered."""


class GuardedSink:
    """A sink that the caller passed in. If it fails, that is reported once and training
    continues without it: the run's evidence is in its own files.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink: Sink | None = sink

    def emit(self, record: Mapping[str, Any]) -> None:
        """Pass the event on."""
        self._call("emit", record)

    def close(self) -> None:
        """Close the sink."""
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        if self.sink is None:
            return
        try:
            getattr(self.sink, method)(*arguments)
        except Exception as error:  # whatever a vendor's library raises
            name = type(self.sink).__name__
            print_status(f"{name} failed and gets no more events: {error!r}")
            self.sink = None


# %%
class RunLog:
    """The events of one rank, in RUN/logs/rank-R.jsonl and wherever else they go.

    Args:
        sinks: the caller's own.
        errors: where a failed write is kept until all ranks can raise it together.
    """

    def __init__(
        self,
        start: Start,
        info: RankInfo,
        schedule: StepSchedule,
        sinks: Sequence[Sink],
        errors: DeferredErrors,
    ) -> None:
        self.errors = errors
        self.steps_per_epoch = schedule.steps_per_epoch
        own: list[Sink] = [JsonlSink(start.cfg.run_dir / "logs" / f"rank-{info.rank}.jsonl")]
        if info.rank == 0:
            own.append(Console())
        common = {
            "rank": info.rank,
            "local_rank": info.local_rank,
            "attempt": start.attempt,
            "run_id": start.record["run_id"],
        }
        self.log = RankLog([*own, *map(GuardedSink, sinks)], common)

    def event(self, name: str, *, step: int, **fields: Any) -> None:
        """Log an event; its epoch is the one in which ``step`` was trained."""
        epoch = max(0, step - 1) // self.steps_per_epoch
        self.errors.attempt(log_rank_event, self.log, name, step=step, epoch=epoch, **fields)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self.log.sinks:
            sink.close()


# %%
def log_start(
    log: RunLog, start: Start, info: RankInfo, schedule: StepSchedule, position: int
) -> None:
    """Log how this attempt starts: from which step, and what it found in the run folder."""
    facts: dict[str, Any] = {
        "digest": start.record["digest"],
        "device": str(info.device),
        "pid": os.getpid(),
        "run_dir": str(start.cfg.run_dir),
        "world_size": info.world_size,
        "total_steps": schedule.total_steps,
        "global_batch_size": schedule.global_batch_size,
    }
    # The process of a notebook is older than the run in it, so its age means nothing.
    if sys.platform == "linux" and "ipykernel" not in sys.modules:
        facts["process_started"] = time.time() - process_age_s()
    log.event("run_start", step=position, **facts)
    for folder, reason in start.damaged.items():
        log.event("checkpoint_rejected", step=position, folder=folder.name, reason=reason)
    if start.changes:
        log.event("config_changed", step=position, changes=start.changes)
    if flags := unread_flags(start.cfg):
        log.event("settings_unread", step=position, flags=", ".join(flags))
    if start.checkpoint is not None:
        # The audit follows the lineage by this: an older attempt's copy may have been put back.
        found = {"folder": start.checkpoint.name, "saved_by_attempt": start.saved_by}
        log.event("checkpoint_restored", step=position, **found)


def process_age_s() -> float:
    """Seconds since this process started. Most of a startup is importing torch. Linux only."""
    started_s = start_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def unread_flags(cfg: TrainConfig) -> list[str]:
    """Flags that were given but have no effect with this data, batch or way of starting."""
    modes = {
        None,
        cfg.data_kind,
        "pinned" if cfg.pinned_global_batch_size else "unpinned",
        "launched" if "WORLD_SIZE" in os.environ else "alone",
    }
    flags = []
    for spec in fields(cfg):
        value = getattr(cfg, spec.name)
        if value != spec.default and spec.metadata.get("only") not in modes:
            flags.append(f"{flag_name(spec.name)} {value}")
    return flags

"""One rank's event log: a JSONL file, rank 0's terminal, and the caller's exporters.

Supports cell 8 (launch).
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

import torch

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
    """Print how a run is going, unless stdout can't be written to.

    To stdout, before the summary: a notebook shows stderr as if it were an error.
    """
    with contextlib.suppress(OSError):
        print(text, flush=True)


def print_problem(text: str) -> None:
    """Print what went wrong to stderr, unless that can't be written to."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


# How rank 0's terminal shows an event.
LINES = {
    "run_start": "{run_dir}, attempt {attempt}, step {step}, world_size {world_size}, "
    "total_steps {total_steps}, global_batch_size {global_batch_size}",
    "checkpoint_rejected": "{folder} is damaged and was set aside: {reason}",
    "config_changed": "changed settings, as [before, now]: {changes}",
    "settings_unread": "no effect in this run: {flags}",
    "batch_above_epoch": "the global batch of {global_batch_size} is larger than the "
    "{num_samples} samples of an epoch, so every step is a whole epoch. If you didn't mean "
    "that, {remedy}",
    "train_progress": "step {step}/{total_steps}  loss {loss:.4f}  "
    "{samples_per_s:.0f} samples/s  {left} left",
    "preempted": "stopped after step {step}, which is saved; the same command resumes there",
}
LONG_S = 1e9  # 30 years; timedelta itself overflows at nearly 1e14 s


class Console:
    """Rank 0's terminal: how the attempt starts, then progress, speed and time left.

    It may fail like any other sink: the disk under stdout is full, or its reader is gone.
    """

    def emit(self, record: Mapping[str, Any]) -> None:
        """Print the event if ``LINES`` has a line for it."""
        if record["event"] in LINES:
            seconds = record.get("seconds_left", 0)
            left = timedelta(seconds=round(seconds)) if seconds < LONG_S else "over 30 years"
            shown = {k: math.nan if value is None else value for k, value in record.items()}
            print(LINES[record["event"]].format(**shown, left=left), flush=True)

    def close(self) -> None:
        """Nothing is buffered."""


class GuardedSink:
    """The terminal, or a sink that the caller passed in. If it fails, that is reported once and
    training continues without it: the run's evidence is in its own files.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink: Sink | None = sink
        self.failure: dict[str, str] = {}  # until the log has reported it

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
            self.sink = None
            self.failure = {"sink": name, "error": repr(error)}
            print_problem(f"{name} failed and gets no more events: {error!r}")


# %%
class RunLog:
    """The events of one rank, in RUN/logs/rank-R.jsonl and wherever else they go.

    Only the file must work: a sink that fails is dropped, and a ``sink_failed`` event says so.

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
        file = JsonlSink(start.cfg.run_dir / "logs" / f"rank-{info.rank}.jsonl")
        others = [Console(), *sinks] if info.rank == 0 else sinks
        common = {
            "rank": info.rank,
            "local_rank": info.local_rank,
            "attempt": start.attempt,
            "run_id": start.record["run_id"],
        }
        self.step = 0
        self.guarded = [GuardedSink(sink) for sink in others]
        self.log = RankLog([file, *self.guarded], common)

    def event(self, name: str, *, step: int, **fields: Any) -> None:
        """Log an event; its epoch is the one in which ``step`` was trained."""
        epoch = max(0, step - 1) // self.steps_per_epoch
        self.errors.attempt(log_rank_event, self.log, name, step=step, epoch=epoch, **fields)
        self.step = step
        self.report_failures()

    def report_failures(self) -> None:
        """Log an event for each sink that has failed since the last call."""
        for sink in self.guarded:
            failure, sink.failure = sink.failure, {}
            if failure:
                self.event("sink_failed", step=self.step, **failure)

    def close(self) -> None:
        """Close all sinks; the file last, because it takes the events about the others."""
        for sink in self.guarded:
            sink.close()
        self.report_failures()
        self.log.sinks[0].close()


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
        "threads": torch.get_num_threads(),  # sums are split among them, so bits depend on it
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
    if (size := schedule.global_batch_size) > schedule.num_samples:
        given = {"global_batch_size": size, "num_samples": schedule.num_samples}
        remedy = f"lower {batch_flag(start.cfg)} and use another --run-dir"
        log.event("batch_above_epoch", step=position, **given, remedy=remedy)
    if start.checkpoint is not None:
        # The audit follows the lineage by this: an older attempt's copy may have been put back.
        found = {"folder": start.checkpoint.name, "saved_by_attempt": start.saved_by}
        log.event("checkpoint_restored", step=position, **found)


def batch_flag(cfg: TrainConfig) -> str:
    """The flag that makes the global batch as large as it is."""
    if cfg.pinned_global_batch_size:
        return "--pinned-global-batch-size"
    return "--grad-accum-steps" if cfg.grad_accum_steps > 1 else "--micro-batch-size"


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

"""Everything that one rank writes down while it trains: events, ledger, trace, progress.

Leaned on by cell 8 (launch).
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

# %% active="py"
from trainer_core.chrome_trace import append_trace
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, ResumeAwareDistributedSampler, StepSchedule
from trainer_core.distributed import RankInfo
from trainer_core.json_lines import JsonlSink
from trainer_core.metrics import RankLog, Sink, StepTimers, log_rank_event, summarize_timers
from trainer_core.model import learning_rate_at
from trainer_core.run_folder import Start
from trainer_core.settings import flag_name
from trainer_core.train import StepRecord
from trainer_core.watchdog import Watchdog


# %%
def say(text: str) -> None:
    """A line for the person at rank 0's terminal."""
    print(text, file=sys.stderr, flush=True)


def unread_flags(cfg: TrainConfig) -> list[str]:
    """Flags that were given, but that this data, batch or start leaves without effect."""
    modes = {None, cfg.data_kind, "pinned" if cfg.pinned_global_batch_size else "unpinned"}
    modes.add("launched" if "WORLD_SIZE" in os.environ else "alone")
    return [
        f"{flag_name(spec.name)} {value}"
        for spec in fields(cfg)
        if (value := getattr(cfg, spec.name)) != spec.default
        and spec.metadata.get("only") not in modes
    ]


# What rank 0's terminal shows of an event.
LINES = {
    "run_start": "{run_dir}, attempt {attempt}, step {step}, world_size {world_size}, "
    "total_steps {total_steps}, global_batch_size {global_batch_size}",
    "checkpoint_rejected": "{folder} is damaged and set aside: {reason}",
    "config_changed": "changed, as [before, now]: {changes}",
    "settings_unread": "no effect in this run: {flags}",
    "train_progress": "step {step}/{total_steps}  loss {loss:.4f}  "
    "{samples_per_s:.0f} samples/s  {left} left",
}


class Console:
    """Rank 0's terminal: how the attempt begins, then how far, how fast, how long still."""

    def emit(self, record: Mapping[str, Any]) -> None:
        """Show an event that has a line; others pass."""
        if record["event"] in LINES:
            left = timedelta(seconds=round(record.get("seconds_left", 0)))
            shown = {k: math.nan if value is None else value for k, value in record.items()}
            say(LINES[record["event"]].format(**shown, left=left))

    def close(self) -> None:
        """Nothing is buffered."""


class Exporter:
    """A sink of the caller. When it fails, that is said once and the training goes on without:
    the run's evidence is in its own files.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink: Sink | None = sink

    def emit(self, record: Mapping[str, Any]) -> None:
        """Pass the event on."""
        self.guard("emit", record)

    def close(self) -> None:
        """Close the sink."""
        self.guard("close")

    def guard(self, name: str, *arguments: Any) -> None:
        """Call the sink; drop it if it raises."""
        if self.sink is not None:
            try:
                getattr(self.sink, name)(*arguments)
            except Exception as error:  # whatever a vendor's library raises
                say(f"{type(self.sink).__name__} has failed and gets no more events: {error!r}")
                self.sink = None


class Journal:
    """One rank's files in the run folder.

    Args:
        sampler: with the position at which this attempt begins.
        state: the restored checkpoint, if any; judged after the first steps.
    """

    def __init__(
        self,
        start: Start,
        info: RankInfo,
        sampler: ResumeAwareDistributedSampler,
        timers: StepTimers,
        sinks: Sequence[Sink],
        state: Mapping[str, Any] | None,
    ) -> None:
        self.start, self.state, self.schedule = start, state, sampler.schedule
        self.position = sampler.position
        self.error: OSError | None = None  # of a line that was not written
        run_dir, name = start.cfg.run_dir, f"rank-{info.rank}"
        who = {"rank": info.rank, "local_rank": info.local_rank, "attempt": start.attempt}
        console = [Console()] if info.rank == 0 else []
        files: list[Sink] = [JsonlSink(run_dir / "logs" / f"{name}.jsonl"), *console]
        files += map(Exporter, sinks)
        self.log = RankLog(files, {**who, "run_id": start.record["run_id"]})
        self.ledger = JsonlSink(run_dir / "ledger" / f"{name}.jsonl")
        self.line = {"rank": info.rank, "world_size": info.world_size, "attempt": start.attempt}
        self.trace = partial(append_trace, run_dir / "traces" / f"{name}.json", pid=info.rank)
        # Ledger lines, each with the flag that says whether its update was withheld.
        self.waiting: list[tuple[Tensor, dict[str, Any]]] = []
        self.losses: list[float] = state["losses"] if state else []  # of the last 20 steps
        self.first_losses: list[float] = []  # of this attempt
        self.window: list[StepRecord] = []  # since the last train_progress
        self.phases: list[dict[str, float]] = []
        self.lr, self.logged_step, self.logged_at = 0.0, self.position, time.perf_counter()
        self.announce(info)
        self.watchdog = Watchdog(start, info, timers, self.position, self.event)

    def announce(self, info: RankInfo) -> None:
        """Log how this attempt begins."""
        start, at = self.start, self.position
        facts = {"digest": start.record["digest"], "device": str(info.device)}
        facts |= {"pid": os.getpid(), "run_dir": str(start.cfg.run_dir)}
        facts |= {"world_size": info.world_size, "total_steps": self.schedule.total_steps}
        facts |= {"global_batch_size": self.schedule.global_batch_size}
        # A notebook's kernel is older than the run in it, so its age says nothing.
        if sys.platform == "linux" and "ipykernel" not in sys.modules:
            # Field 22 of proc(5), in ticks since boot. Most of a start-up is torch's import.
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            facts["process_started"] = time.time() - age_s
        self.event("run_start", step=at, **facts)
        for folder, reason in start.damaged.items():
            self.event("checkpoint_rejected", step=at, folder=folder.name, reason=reason)
        if start.changes:
            self.event("config_changed", step=at, changes=start.changes)
        if flags := unread_flags(start.cfg):
            self.event("settings_unread", step=at, flags=", ".join(flags))
        if start.checkpoint is not None:
            self.event("checkpoint_restored", step=at, folder=start.checkpoint.name)

    def event(self, name: str, *, step: int, **fields: Any) -> None:
        """Log an event; its epoch is the one in which ``step`` was trained."""
        epoch = max(0, step - 1) // self.schedule.steps_per_epoch
        self.try_to(log_rank_event, self.log, name, step=step, epoch=epoch, **fields)

    def try_to(self, write: Callable[..., None], *arguments: Any, **fields: Any) -> None:
        """Write; ``error`` is raised at the ranks' next vote: one that raised alone would leave
        its peers to a broken connection.
        """
        try:
            write(*arguments, **fields)
        except OSError as error:
            self.error = error

    def trained(
        self, step: int, batches: Sequence[MicroBatch], withheld: Tensor, seconds: float
    ) -> None:
        """Write the ledger's line of a step that the optimizer has taken.

        Whether it was skipped (``withheld`` is 1.0) is known on the device first. On CUDA the
        line waits until the host reads the step's records, which is before every save.
        """
        samples = [sample for batch in batches for sample in batch.samples.tolist()]
        where = {"step": step, "epoch": (step - 1) // self.schedule.steps_per_epoch}
        when = {"time": time.time(), "step_s": round(seconds, 6)}
        self.watchdog.beat(step)
        self.waiting.append((withheld, {**where, **self.line, "samples": samples, **when}))
        if not withheld.is_cuda:
            self.flush_ledger()

    def flush_ledger(self) -> None:
        """Hand the waiting lines to the kernel."""
        for withheld, line in self.waiting:
            skipped = {"skipped": True} if withheld.item() else {}
            self.try_to(self.ledger.emit, line | skipped)
        self.waiting.clear()

    def read(self, step: int, lr: float, records: Sequence[StepRecord]) -> None:
        """Take what the host has learnt of the last steps; after five, judge the resume."""
        self.flush_ledger()
        self.lr = lr
        self.window += records
        losses = [record.loss for record in records]
        self.losses = (self.losses + losses)[-20:]
        self.first_losses = (self.first_losses + losses)[:5]
        enough = len(self.first_losses) == 5 or step == self.schedule.total_steps
        if self.state is not None and enough:
            after = self.first_losses
            checks = validate_resume(
                self.state, self.start, self.schedule, self.position, after
            )
            is_ok = False not in checks.values()
            self.event("resume_validated", step=step, ok=is_ok, checks=checks)
            self.state = None

    def progress(self, step: int, timers: StepTimers) -> None:
        """One train_progress event over the steps since the last."""
        for past, spent, marks in timers.read():
            self.phases.append(spent)
            if past <= self.position + self.start.cfg.trace_steps:
                args = {"step": past, "attempt": self.start.attempt}
                self.try_to(self.trace, timers.trace_events(marks), args=args)
        seconds, steps = time.perf_counter() - self.logged_at, range(self.logged_step, step)
        num_samples, total = sum(map(self.schedule.size, steps)), self.schedule.total_steps
        self.event(
            "train_progress",
            step=step,
            total_steps=total,
            loss=self.window[-1].loss,
            lr=self.lr,
            grad_norm=self.window[-1].grad_norm,
            skipped_steps=sum(record.skipped for record in self.window),
            samples_per_s=round(num_samples / seconds, 1),
            seconds_left=round((total - step) * seconds / len(steps), 1),
            phases=summarize_timers(self.phases),
            data_wait_s=round(sum(spent["data_wait"] for spent in self.phases) / 1e3, 6),
        )
        self.phases, self.window = [], []
        self.logged_step, self.logged_at = step, time.perf_counter()

    def close(self) -> None:
        """Stop watching and close all files, the lock's last."""
        self.watchdog.close()
        for file in (*self.log.sinks, self.ledger, self.start.lock):
            if file is not None:
                file.close()


# %%
def validate_resume(
    state: Mapping[str, Any],
    start: Start,
    schedule: StepSchedule,
    position: int,
    next_losses: Sequence[float],
) -> dict[str, bool | None]:
    """What a resume must keep continuous; None where there is too little to judge by.

    Args:
        state: the restored checkpoint.
        position: the sampler's own, when the training went on.
        next_losses: over the global batch, of the first steps after the resume.
    """

    def of_full_steps(losses: Sequence[float], first: int) -> list[float]:
        # The last step of an epoch may have a single sample, whose loss says little.
        steps = enumerate(losses, first)
        return [loss for at, loss in steps if schedule.size(at) == schedule.size(0)]

    earlier = of_full_steps(state["losses"], state["step"] - len(state["losses"]))
    before = [loss for loss in earlier if math.isfinite(loss)]
    after = of_full_steps(next_losses, position)
    continuous = None
    if len(before) > 2 and after:
        # A NaN among the next losses makes the comparison false.
        jump = abs(statistics.fmean(after) - statistics.fmean(before))
        continuous = jump <= max(4 * statistics.stdev(before), 0.1 * max(before))
    # What the schedule gives now for the checkpoint's step, unless new settings move it.
    movers = {"learning_rate", "warmup_steps", "decay_steps", "min_lr_fraction"}
    is_same_lr = math.isclose(learning_rate_at(start.cfg, position), state["learning_rate"])
    return {
        "step_monotone": state["step"] == position,
        "sampler_position_continuous": state["sampler"]["position"] == position,
        "learning_rate_continuous": None if movers & start.changes.keys() else is_same_lr,
        "optimizer_state_present": len(state["optimizer"]["state"]) > 0,
        "scaler_state_present": bool(state["scaler"]) if start.cfg.amp == "fp16" else None,
        "loss_continuous": continuous,
    }

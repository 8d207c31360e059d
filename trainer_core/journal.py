"""Everything that one rank writes down while it trains: events, ledger, trace, progress.

Leaned on by cell 8 (launch).
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import count
from typing import Any

import torch
from torch import Tensor

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, ResumeAwareDistributedSampler, StepSchedule
from trainer_core.distributed import RankInfo
from trainer_core.jsonfiles import JsonlSink, TraceFile
from trainer_core.metrics import RankLog, Sink, StepTimers
from trainer_core.metrics import log_rank_event, summarize_timers
from trainer_core.model import learning_rate_at
from trainer_core.runfolder import Start
from trainer_core.settings import flag_name
from trainer_core.train import StepRecord


# %%
def say(text: str) -> None:
    """A line for the person at rank 0's terminal."""
    print(text, file=sys.stderr, flush=True)


def unread_flags(cfg: TrainConfig) -> list[str]:
    """Flags that were given, but that this data or the pinned batch leaves without effect."""
    modes = {None, cfg.data_kind, "pinned" if cfg.pinned_global_batch_size else "unpinned"}
    return [
        f"{flag_name(spec.name)} {value}"
        for spec in fields(cfg)
        if (value := getattr(cfg, spec.name)) != spec.default
        and spec.metadata.get("only") not in modes
    ]


class ProgressLine:
    """Rank 0's line on stderr: how far, how fast, how long still."""

    def emit(self, record: Mapping[str, Any]) -> None:
        """Show train_progress; other events pass."""
        if record["event"] == "train_progress":
            minutes, seconds = divmod(round(record["seconds_left"]), 60)
            loss = math.nan if record["loss"] is None else record["loss"]
            say(
                f"step {record['step']}/{record['total_steps']}  loss {loss:.4f}  "
                f"{record['samples_per_s']:.0f} samples/s  {minutes}:{seconds:02} left"
            )

    def close(self) -> None:
        """Nothing is buffered."""


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
        sinks: Sequence[Sink],
        state: Mapping[str, Any] | None,
    ) -> None:
        self.start, self.schedule, self.state = start, sampler.schedule, state
        self.position = sampler.position
        self.error: OSError | None = None  # of a ledger line
        run_dir, name = start.cfg.run_dir, f"rank-{info.rank}"
        who = {"rank": info.rank, "local_rank": info.local_rank, "attempt": start.attempt}
        shown = [ProgressLine()] if info.rank == 0 else []
        files: list[Sink] = [JsonlSink(run_dir / "logs" / f"{name}.jsonl"), *shown, *sinks]
        self.log = RankLog(files, {**who, "run_id": start.record["run_id"]})
        self.ledger = JsonlSink(run_dir / "ledger" / f"{name}.jsonl")
        self.line = {"rank": info.rank, "world_size": info.world_size, "attempt": start.attempt}
        trace_path = run_dir / "traces" / f"{name}.json"
        self.trace = TraceFile(trace_path, rank=info.rank, attempt=start.attempt)
        # Ledger lines whose flag has not reached the host yet; on a CPU there are none.
        self.waiting: deque[tuple[Tensor, torch.cuda.Event | None, dict[str, Any]]] = deque()
        self.losses: deque[float] = deque(state["losses"] if state else (), maxlen=20)
        self.first_losses: list[float] = []  # of this attempt
        self.window: list[StepRecord] = []  # since the last train_progress
        self.phases: list[dict[str, float]] = []
        self.lr, self.logged_step, self.logged_at = 0.0, self.position, time.perf_counter()
        self.announce(info)

    def announce(self, info: RankInfo) -> None:
        """Log how this attempt begins."""
        start, at = self.start, self.position
        sizes = {"world_size": info.world_size, "total_steps": self.schedule.total_steps}
        sizes |= {"global_batch_size": self.schedule.global_batch_size}
        digest = start.record["digest"]
        here = {
            "device": str(info.device),
            "pid": os.getpid(),
            "run_dir": str(start.cfg.run_dir),
        }
        self.event("run_start", step=at, digest=digest, **here, **sizes)
        for folder, reason in start.damaged.items():
            self.event("checkpoint_rejected", step=at, folder=folder.name, reason=reason)
        if start.changes:
            self.event("config_changed", step=at, changes=start.changes)
        if unread := ", ".join(unread_flags(start.cfg)):
            self.event("settings_unread", step=at, flags=unread)
        if start.checkpoint is not None:
            self.event("checkpoint_restored", step=at, folder=start.checkpoint.name)
        if info.rank == 0:
            facts = {"attempt": start.attempt, "step": at, **sizes}
            say(", ".join([str(start.cfg.run_dir), *(f"{k} {v}" for k, v in facts.items())]))
            for folder, reason in start.damaged.items():
                say(f"{folder.name} is damaged and set aside: {reason}")
            for name, (old, new) in start.changes.items():
                say(f"{name} was {old}, is {new}")
            if unread:
                say(f"no effect with --data {start.cfg.data_kind} or a pinned batch: {unread}")

    def event(self, name: str, *, step: int, **fields: Any) -> None:
        """Log an event; its epoch is the one in which ``step`` was trained."""
        epoch = max(0, step - 1) // self.schedule.steps_per_epoch
        log_rank_event(self.log, name, step=step, epoch=epoch, **fields)

    def checkpoint_saved(self, step: int, seconds: float) -> None:
        """Log a publication, maybe from the writer's thread."""
        self.event("checkpoint_saved", step=step, seconds=round(seconds, 6))

    def trained(
        self, step: int, batches: Sequence[MicroBatch], withheld: Tensor, seconds: float
    ) -> None:
        """Write the ledger's line of a step that the optimizer has taken.

        Whether it was skipped (``withheld`` is 1.0) is known on the device first. On CUDA the
        flag travels to the host beside the work, and lines wait for it in order.
        """
        arrived = None
        if withheld.is_cuda:
            withheld = torch.empty((), pin_memory=True).copy_(withheld, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        samples = [sample for batch in batches for sample in batch.samples.tolist()]
        where = {"step": step, "epoch": (step - 1) // self.schedule.steps_per_epoch}
        when = {"time": time.time(), "step_s": round(seconds, 6)}
        line = {**where, **self.line, "samples": samples, **when}
        self.waiting.append((withheld, arrived, line))
        try:
            self.flush_ledger(wait=False)
        except OSError as error:  # raised by all ranks at the next step's vote
            self.error = error

    def flush_ledger(self, *, wait: bool = True) -> None:
        """Hand the lines whose flag is known to the kernel; with ``wait``, all of them."""
        while self.waiting:
            withheld, arrived, line = self.waiting[0]
            if arrived is not None and wait:
                arrived.synchronize()
            elif arrived is not None and not arrived.query():
                return
            if withheld.item():
                line["skipped"] = True
            self.ledger.emit(line)
            self.waiting.popleft()

    def read(self, step: int, lr: float, records: Sequence[StepRecord]) -> None:
        """Take what the host has learnt of the last steps; after five, judge the resume."""
        self.lr = lr
        self.window += records
        self.losses.extend(record.loss for record in records)
        self.first_losses = (self.first_losses + [record.loss for record in records])[:5]
        enough = len(self.first_losses) == 5 or step == self.schedule.total_steps
        if self.state is not None and enough:
            cfg, after = self.start.cfg, self.first_losses
            # What the schedule gives now for the step before, unless new settings move it.
            movers = {"learning_rate", "warmup_steps", "decay_steps", "min_lr_fraction"}
            is_moved = not movers.isdisjoint(self.start.changes)
            expected = None if is_moved else learning_rate_at(cfg, self.position)
            scales = cfg.amp == "fp16"
            checks = validate_resume(
                self.state, self.position, self.schedule, expected, scales, after
            )
            ok = False not in checks.values()
            self.event("resume_validated", step=step, ok=ok, checks=checks)
            self.state = None

    def progress(self, step: int, lr: float, timers: StepTimers) -> None:
        """One train_progress event over the steps since the last."""
        for past, spent, marks in timers.read():
            self.phases.append(spent)
            if past <= self.position + self.start.cfg.trace_steps:
                self.trace.append(past, timers.trace_events(marks))
        seconds, steps = time.perf_counter() - self.logged_at, range(self.logged_step, step)
        slots = (self.schedule.slots(position) for position in steps)
        num_samples = sum(last - first for _, first, last in slots)
        total = self.schedule.total_steps
        self.event(
            "train_progress",
            step=step,
            total_steps=total,
            loss=self.window[-1].loss,
            lr=lr,
            grad_norm=self.window[-1].grad_norm,
            skipped_steps=sum(record.skipped for record in self.window),
            samples_per_s=round(num_samples / seconds, 1),
            seconds_left=round((total - step) * seconds / len(steps), 1),
            phases=summarize_timers(self.phases),
        )
        self.phases, self.window = [], []
        self.logged_step, self.logged_at = step, time.perf_counter()

    def close(self) -> None:
        """Close all files, the lock's last."""
        for file in (*self.log.sinks, self.ledger, self.start.lock):
            if file is not None:
                file.close()


# %%
def of_full_steps(
    losses: Sequence[float], position: int, schedule: StepSchedule
) -> list[float]:
    """Of the losses of the steps from ``position`` on, those over a whole global batch.

    The last step of an epoch may have a single sample, whose loss says little.
    """
    sizes = (last - first for _, first, last in map(schedule.slots, count(position)))
    return [
        loss for loss, size in zip(losses, sizes, strict=False) if size == schedule.slots(0)[2]
    ]


def validate_resume(
    state: Mapping[str, Any],
    position: int,
    schedule: StepSchedule,
    learning_rate: float | None,
    needs_scaler: bool,
    next_losses: Sequence[float],
) -> dict[str, bool | None]:
    """What a resume must keep continuous; None where there is too little to judge by.

    Args:
        state: the restored checkpoint.
        position: the sampler's own, when the training went on.
        learning_rate: what the schedule gives for the checkpoint's step; None if changed.
        next_losses: over the global batch, of the first steps after the resume.
    """
    earlier = of_full_steps(state["losses"], state["step"] - len(state["losses"]), schedule)
    before = [loss for loss in earlier if math.isfinite(loss)]
    after = of_full_steps(next_losses, position, schedule)
    continuous = None
    if len(before) > 2 and after:
        # A NaN among the next losses makes the comparison false.
        jump = abs(statistics.fmean(after) - statistics.fmean(before))
        continuous = jump <= max(4 * statistics.stdev(before), 0.1 * max(before))
    lr_before = state["learning_rate"]
    return {
        "step_monotone": state["step"] == position,
        "sampler_position_continuous": state["sampler"]["position"] == position,
        "learning_rate_continuous": None
        if learning_rate is None
        else math.isclose(learning_rate, lr_before),
        "optimizer_state_present": len(state["optimizer"]["state"]) > 0,
        "scaler_state_present": bool(state["scaler"]) if needs_scaler else None,
        "loss_continuous": continuous,
    }

"""How far a run is and where its time goes: the train_progress events and the trace.

Supports cell 8 (launch).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

# %% active="py"
from trainer_core.chrome_trace import append_trace
from trainer_core.data import StepSchedule
from trainer_core.metrics import StepTimers, summarize_timers
from trainer_core.run_folder import Start
from trainer_core.run_log import RunLog
from trainer_core.train import StepRecord


# %%
class Progress:
    """What the host knows about the last steps of this rank.

    Args:
        position: completed steps when this attempt started.
        losses: of the last steps before that, from the checkpoint.
    """

    def __init__(
        self,
        start: Start,
        log: RunLog,
        schedule: StepSchedule,
        timers: StepTimers,
        position: int,
        losses: Sequence[float],
    ) -> None:
        self.log = log
        self.schedule = schedule
        self.timers = timers
        self.attempt = start.attempt
        self.rank = log.log.common["rank"]
        self.trace_path = start.cfg.run_dir / "traces" / f"rank-{self.rank}.json"
        self.last_traced_step = position + start.cfg.trace_steps
        self.lr = 0.0
        self.losses = list(losses)  # of the last 20 steps
        self.window: list[StepRecord] = []  # since the last train_progress
        self.logged_step = position
        self.logged_at = time.perf_counter()

    def add(self, records: Sequence[StepRecord], lr: float) -> None:
        """Take the records of the last steps, and the learning rate of the last of them."""
        self.lr = lr
        self.window += records
        self.losses = (self.losses + [record.loss for record in records])[-20:]

    def report(self, step: int) -> None:
        """Log one train_progress event about the steps since the last one."""
        phases = self.read_phases()
        seconds = time.perf_counter() - self.logged_at
        steps = range(self.logged_step, step)
        num_samples = sum(map(self.schedule.size, steps))
        steps_left = self.schedule.total_steps - step
        self.log.event(
            "train_progress",
            step=step,
            total_steps=self.schedule.total_steps,
            loss=self.window[-1].loss,
            lr=self.lr,
            grad_norm=self.window[-1].grad_norm,
            skipped_steps=sum(record.skipped for record in self.window),
            samples_per_s=round(num_samples / seconds, 1),
            seconds_left=round(steps_left * seconds / len(steps), 1),
            phases=summarize_timers(phases),
            data_wait_s=round(sum(spent["data_wait"] for spent in phases) / 1e3, 6),
        )
        self.window = []
        self.logged_step = step
        self.logged_at = time.perf_counter()

    def read_phases(self) -> list[dict[str, float]]:
        """Milliseconds per phase of each step since the last call; traces the first steps."""
        phases: list[dict[str, float]] = []
        for step, spent, marks in self.timers.read():
            phases.append(spent)
            if step <= self.last_traced_step:
                args: dict[str, Any] = {"step": step, "attempt": self.attempt}
                events = self.timers.trace_events(marks)
                self.log.errors.attempt(
                    append_trace, self.trace_path, events, pid=self.rank, args=args
                )
        return phases

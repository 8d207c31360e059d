"""Everything that one rank writes down while it trains: events, ledger, trace, progress.

Leaned on by cell 8 (launch).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.distributed import RankInfo
from trainer_core.metrics import JsonlSink, ProgressLine, RankLog, Sink, StepTimers
from trainer_core.metrics import log_rank_event, summarize_timers
from trainer_core.trace import TraceFile


# %%
class Journal:
    """One rank's files in the run folder.

    Args:
        schedule: tells the epoch of a step and its size.
        position: completed steps when this attempt begins.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        info: RankInfo,
        schedule: StepSchedule,
        sinks: Sequence[Sink],
        *,
        attempt: int,
        run_id: str,
        position: int,
    ) -> None:
        run_dir, file = cfg.run_dir, f"rank-{info.rank}"
        self.schedule, self.first_step, self.trace_steps = (
            schedule,
            position + 1,
            cfg.trace_steps,
        )
        where = {"rank": info.rank, "local_rank": info.local_rank, "attempt": attempt}
        shown = [ProgressLine()] if info.rank == 0 else []
        everything = [JsonlSink(run_dir / "logs" / f"{file}.jsonl"), *shown, *sinks]
        self.log = RankLog(everything, {**where, "run_id": run_id})
        self.ledger = JsonlSink(run_dir / "ledger" / f"{file}.jsonl")
        trace_path = run_dir / "traces" / f"{file}.json"
        self.trace = TraceFile(trace_path, rank=info.rank, attempt=attempt)
        self.ledger_common = {
            "attempt": attempt,
            "rank": info.rank,
            "world_size": info.world_size,
        }
        # Ledger lines whose flag has not reached the host yet; on a CPU there are none.
        self.waiting: deque[tuple[Tensor, torch.cuda.Event | None, dict[str, Any]]] = deque()
        self.phases: list[dict[str, float]] = []
        self.logged_step, self.logged_at = position, time.perf_counter()

    def event(self, name: str, *, step: int, **fields: Any) -> None:
        """Log an event; its epoch is the one in which ``step`` was trained."""
        epoch = max(0, step - 1) // self.schedule.steps_per_epoch
        log_rank_event(self.log, name, step=step, epoch=epoch, **fields)

    def trained(self, step: int, samples: list[int], withheld: Tensor, seconds: float) -> None:
        """Write the ledger's line of a step that the optimizer has taken.

        Whether it was skipped (``withheld`` is 1.0) is known on the device first. On CUDA the
        flag travels to the host beside the work, and lines wait for it in order.
        """
        arrived = None
        if withheld.is_cuda:
            withheld = torch.empty((), pin_memory=True).copy_(withheld, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        epoch = (step - 1) // self.schedule.steps_per_epoch
        line = {"epoch": epoch, "step": step, **self.ledger_common, "samples": samples}
        line |= {"time": time.time(), "step_s": round(seconds, 6)}
        self.waiting.append((withheld, arrived, line))
        self.flush_ledger(wait=False)

    def flush_ledger(self, *, wait: bool = True) -> None:
        """Hand the lines whose flag is known to the kernel; with ``wait``, all of them."""
        while self.waiting:
            withheld, arrived, line = self.waiting[0]
            if arrived is not None and wait:
                arrived.synchronize()
            elif arrived is not None and not arrived.query():
                return
            self.ledger.emit(line | ({"skipped": True} if withheld.item() else {}))
            self.waiting.popleft()

    def progress(self, step: int, timers: StepTimers, **fields: Any) -> None:
        """One train_progress event over the steps since the last."""
        for past, spent, events in timers.read():
            self.phases.append(spent)
            if past < self.first_step + self.trace_steps:
                self.trace.append(past, events)
        seconds = time.perf_counter() - self.logged_at
        num_steps = step - self.logged_step
        slots = (self.schedule.slots(position) for position in range(self.logged_step, step))
        num_samples = sum(last - first for _, first, last in slots)
        self.event(
            "train_progress",
            step=step,
            total_steps=self.schedule.total_steps,
            samples_per_s=round(num_samples / seconds, 1),
            seconds_left=round((self.schedule.total_steps - step) * seconds / num_steps, 1),
            phases=summarize_timers(self.phases),
            **fields,
        )
        self.phases = []
        self.logged_step, self.logged_at = step, time.perf_counter()

    def close(self) -> None:
        """Write what waits, and close all files."""
        self.flush_ledger()
        for sink in (*self.log.sinks, self.ledger):
            sink.close()

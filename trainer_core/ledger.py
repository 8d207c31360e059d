"""The ledger: one line for each step that the optimizer has taken, with the samples it used.

Supports cell 8 (launch).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

# %% active="py"
from trainer_core.collectives import DeferredErrors
from trainer_core.data import MicroBatch, StepSchedule
from trainer_core.distributed import RankInfo
from trainer_core.json_lines import JsonlSink
from trainer_core.metrics import Stamp, StepTimers
from trainer_core.run_folder import Start


# %%
class Ledger:
    """RUN/ledger/rank-R.jsonl: evidence of what was trained, not of what was planned.

    Args:
        timers: the loop's; on CUDA they know when the device took a step, and how long.
        errors: where a failed write is kept until all ranks can raise it together.
    """

    def __init__(
        self,
        start: Start,
        info: RankInfo,
        schedule: StepSchedule,
        timers: StepTimers,
        errors: DeferredErrors,
    ) -> None:
        self.timers = timers
        self.errors = errors
        self.steps_per_epoch = schedule.steps_per_epoch
        self.rank = info.rank
        self.world_size = info.world_size
        self.attempt = start.attempt
        self.file = JsonlSink(start.cfg.run_dir / "ledger" / f"rank-{info.rank}.jsonl")
        # Lines that wait for the device: for the flag that says whether the update was skipped,
        # and for the stamps at the step's start and end.
        self.waiting: list[tuple[dict[str, Any], Tensor, Stamp, Stamp]] = []

    def add(
        self, step: int, batches: Sequence[MicroBatch], skipped: Tensor, seconds: float
    ) -> None:
        """Record a step that the optimizer has taken.

        On CUDA the host has only queued the step: neither its outcome nor its time is known
        yet. The line waits until the host reads the step's records, which it does before every
        save.

        Args:
            skipped: 1.0 if the update was skipped, on the device.
            seconds: since the step began, by the host's clock. Not used on CUDA.
        """
        line = {
            "step": step,
            "epoch": (step - 1) // self.steps_per_epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "attempt": self.attempt,
            "samples": [sample for batch in batches for sample in batch.samples.tolist()],
            "time": time.time(),
            "step_s": round(seconds, 6),
        }
        if self.timers.uses_events:
            (_, began, _), *_, (_, _, ended) = self.timers.marks
            self.waiting.append((line, skipped, began, ended))
        else:
            self.write(line, skipped)

    def flush(self) -> None:
        """Write the lines that wait for the device. Call it once the device is done with them.

        ``time`` and ``step_s`` become the device's. The last step has just ended, and events
        show how much earlier each of the others did, so each flush realigns the two clocks.
        """
        now = time.time()
        for line, skipped, began, ended in self.waiting:
            last_end = self.waiting[-1][3]
            line["time"] = now - self.timers.between_ms(ended, last_end) / 1e3
            line["step_s"] = round(self.timers.between_ms(began, ended) / 1e3, 6)
            self.write(line, skipped)
        self.waiting.clear()

    def write(self, line: dict[str, Any], skipped: Tensor) -> None:
        """Hand a line to the operating system."""
        if skipped.item():
            line["skipped"] = True
        self.errors.attempt(self.file.emit, line)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

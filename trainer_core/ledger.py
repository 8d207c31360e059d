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
from trainer_core.run_folder import Start


# %%
class Ledger:
    """RUN/ledger/rank-R.jsonl: evidence of what was trained, not of what was planned.

    Args:
        errors: where a failed write is kept until all ranks can raise it together.
    """

    def __init__(
        self, start: Start, info: RankInfo, schedule: StepSchedule, errors: DeferredErrors
    ) -> None:
        self.errors = errors
        self.steps_per_epoch = schedule.steps_per_epoch
        self.rank = info.rank
        self.world_size = info.world_size
        self.attempt = start.attempt
        self.file = JsonlSink(start.cfg.run_dir / "ledger" / f"rank-{info.rank}.jsonl")
        # Lines that wait for the flag beside them, which says whether the update was skipped.
        self.waiting: list[tuple[Tensor, dict[str, Any]]] = []

    def add(
        self, step: int, batches: Sequence[MicroBatch], skipped: Tensor, seconds: float
    ) -> None:
        """Record a step that the optimizer has taken.

        The device is the first to know whether the update was skipped (1.0 in ``skipped``). On
        CUDA the line waits until the host reads the step's records, which precedes every save.
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
        self.waiting.append((skipped, line))
        if not skipped.is_cuda:
            self.flush()

    def flush(self) -> None:
        """Hand the waiting lines to the operating system."""
        for skipped, line in self.waiting:
            if skipped.item():
                line["skipped"] = True
            self.errors.attempt(self.file.emit, line)
        self.waiting.clear()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

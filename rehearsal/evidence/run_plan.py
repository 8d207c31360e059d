"""What was due? Which samples each step of the run had to train, from its settings alone.

A collapsed cell. The question it answers: "which samples should step 1234 have trained?" It
does not look at what was trained: a plan guessed from that would always fit it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from rehearsal.evidence.run_records import is_count, live_starts
from trainer_core.order import EpochOrder

# %%
MOST_IN_MEMORY = 2**24  # sample ids: 128 MB


class RunPlan(NamedTuple):
    """What a run's sample order depends on, and how long the run is."""

    num_samples: int
    seed: int
    global_batch_size: int
    total_steps: int
    is_live: bool = False  # live.py's: it shuffles each epoch in memory

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that train each sample once."""
        return -(-self.num_samples // self.global_batch_size)

    def samples_until(self, step: int) -> int:
        """How many samples the steps up to ``step`` train, in all epochs."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        return epoch * self.num_samples + rest * self.global_batch_size

    def shuffled(self, epoch: int) -> NDArray[np.int64]:
        """The samples of an epoch as live.py orders them, by its rule and not by its code."""
        key = repr(("order", self.seed, epoch)).encode()
        word = int.from_bytes(hashlib.sha256(key).digest()[:8])
        return np.random.default_rng(word).permutation(self.num_samples)


def read_plan(run_dir: Path | str) -> RunPlan:
    """Read the plan from the run's config.json, or from the last start that live.py recorded.

    Raises:
        ValueError: if neither is usable.
    """
    path = Path(run_dir, "config.json")
    try:
        starts = [] if os.path.lexists(path) else list(live_starts(run_dir))
        if starts:
            last = max(starts, key=lambda start: start["attempt"])
            names = ("dataset_size", "seed", "global_batch_size", "max_epochs")
            n, seed, batch, total_steps = (last[name] for name in names)
        else:
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError("not a file")
            config = json.loads(path.read_text(encoding="utf-8"))
            n, seed, batch = (config["identity"][name] for name in RunPlan._fields[:3])
            total_steps = config["total_steps"]
        if not all(map(is_count, (n, seed, batch, total_steps))):
            raise ValueError("a number that isn't a whole number, or is below 0")
        if starts and batch:
            total_steps *= -(-n // batch)
        if min(n, batch, total_steps) < 1:
            raise ValueError("a size below 1")
        # Ids are int64; live.py shuffles in memory; and a ledger line lists each of its ids.
        if max(n, total_steps) > 2**63 or (n if starts else min(n, batch)) > MOST_IN_MEMORY:
            raise ValueError("a size that no run can have")
        return RunPlan(n, seed, batch, total_steps, bool(starts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: unusable ({type(error).__name__}: {error}). The audit compares the "
            "ledger with the plan in this file. Name the folder you gave launch.py as "
            "--run-dir."
        ) from None


# %%
class PlannedSteps:
    """The planned sample ids of any step, computed in blocks of many steps."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.epoch, self.first = -1, 0
        self.block: NDArray[np.int64] = np.empty(0, np.int64)

    def samples(self, step: int) -> NDArray[np.int64]:
        """The sample ids of a step of the plan, in order."""
        plan = self.plan
        epoch, at = divmod(step - 1, plan.steps_per_epoch)
        first = at * plan.global_batch_size
        last = min(first + plan.global_batch_size, plan.num_samples)
        is_known = self.first <= first and last <= self.first + len(self.block)
        if epoch != self.epoch or not is_known:
            size = min(max(last - first, 65_536), plan.num_samples - first)
            self.epoch, self.first = epoch, first
            if plan.is_live:
                self.first, self.block = 0, plan.shuffled(epoch)
            else:
                order = EpochOrder(plan.num_samples, seed=plan.seed, epoch=epoch)
                self.block = order.samples(first, first + size)
        return self.block[first - self.first : last - self.first]

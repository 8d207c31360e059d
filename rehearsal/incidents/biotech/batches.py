"""What a rank's batches held: tokens and memory, and what was predicted for whose labels.

RUN/telemetry/batches/rank-0.jsonl: a line per forward pass, written before it is known whether
the rank survives it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rehearsal.faults.breaks import wrap
from rehearsal.incidents.agent import TELEMETRY, memory, position
from rehearsal.incidents.biotech.world import data_of, world_of
from rehearsal.incidents.world import Plan

BATCHES = f"{TELEMETRY}/batches"  # below the run folder
NOMINAL_TOKENS = 1024  # that a pass over proteins takes ``compute_ms`` for


def work_of(inputs: Any) -> float:
    """How long a pass takes, in nominal ones: a protein costs by its tokens, padding included.

    Without sequences there is one row of two tokens, which costs next to nothing.
    """
    tokens = getattr(inputs, "tokens", None)
    return 1.0 if tokens is None else tokens.numel() / NOMINAL_TOKENS


@dataclass
class Held:
    """What the accelerator holds, as its caching allocator does: the most it ever needed."""

    mib: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)

    def reserve(self, mib: float) -> None:
        """Make room for a batch. Memory that nobody touches doesn't count, so touch it."""
        if mib > self.mib:
            self.mib, self.buffer = mib, bytearray()  # the old buffer goes first
            self.buffer = bytearray(round(mib * 2**20))
            self.buffer[::4096] = b"x" * len(self.buffer[::4096])


def keep_what_batches_hold(plan: Plan, rank: int, attempt: int, run_dir: Path) -> None:
    """Write a line for each forward pass of proteins or molecules."""
    path = run_dir / BATCHES / f"rank-{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting: list[list[int]] = []  # ids of the step's micro-batches, in order

    def write(facts: dict[str, Any]) -> None:
        line = {"attempt": attempt, "step": position.next_step, "rank": rank, **facts}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def stepping(task_step: Any, trainer: Any, task: Any, batches: Any, *rest: Any) -> Any:
        waiting[:] = [batch.samples.tolist() for batch in batches if len(batch.samples)]
        return task_step(trainer, task, batches, *rest)

    wrap("task_step", stepping)
    if data_of(plan) == "proteins":
        count_tokens(plan, waiting, write)
    elif data_of(plan) == "molecules":
        compare_with_labels(waiting, write)


Write = Callable[[dict[str, Any]], None]


def count_tokens(plan: Plan, waiting: list[list[int]], write: Write) -> None:
    """Before each pass: rows, tokens, the longest protein, and the memory that it takes."""
    held, per_pair = Held(), world_of(plan).mib_per_million_pairs / 1e6

    def passing(summed_task_loss: Any, trainer: Any, task: Any, inputs: Any, *rest: Any) -> Any:
        if len(inputs):
            rows, width = inputs.tokens.shape
            needed = per_pair * rows * width * width  # every token of a row with every other
            bins = waiting.pop(0)
            write(
                {
                    "samples": bins,
                    "proteins": len(inputs),
                    "rows": rows,
                    "longest": width,
                    "longest_id": longest_in(task, bins),
                    "tokens": rows * width,
                    "needs_mib": round(needed, 1),
                }
            )
            held.reserve(needed)
            memory.check()
        return summed_task_loss(trainer, task, inputs, *rest)

    wrap("summed_task_loss", passing)


def longest_in(task: Any, bins: list[int]) -> int:
    """The number of the longest protein in these bins, as they are in the epoch to come."""
    epoch, _, _ = position.sampler.schedule.slots(position.sampler.position)
    plan, seed = task.bins.plan, task.bins.seed
    items = [int(item) for b in bins for item in plan.items(b, seed=seed, epoch=epoch)]
    return max(items, key=lambda item: int(task.bins.proteins.lengths[item]))


def compare_with_labels(waiting: list[list[int]], write: Write) -> None:
    """At each pass, per molecule: labels, actives, what was expected, and the summed loss."""

    def losing(summed_loss: Any, task: Any, outputs: Tensor, targets: Tensor) -> Any:
        if waiting:
            known = ~targets.isnan()
            logits = outputs.detach()
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, targets.nan_to_num(), reduction="none"
            )
            write(
                {
                    "samples": waiting.pop(0),
                    "labels": known.sum(dim=1).tolist(),
                    "actives": targets.nan_to_num().sum(dim=1).tolist(),
                    "expected": rounded(logits.sigmoid().where(known, 0.0)),
                    "losses": rounded(losses.where(known, 0.0)),
                }
            )
        return summed_loss(task, outputs, targets)

    wrap("MoleculeTask.summed_loss", losing)


def rounded(values: Tensor) -> list[float]:
    """Sums over the assays, for JSON."""
    return [round(value, 4) for value in values.sum(dim=1).tolist()]

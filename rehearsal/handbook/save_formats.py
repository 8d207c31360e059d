"""What a save costs: bytes, the time that training waits, and the time until it's usable."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rehearsal.handbook.on_ranks import on_ranks

State = dict[str, Tensor]
Save = Callable[[State, Path, dict[str, Any]], Future[None] | None]


class Cost(NamedTuple):
    """Of one way to save, as measured on this machine; times are medians."""

    name: str
    files: int
    total_mb: float
    largest_mb: float  # the largest file: what the busiest writer has to write
    blocked_ms: float  # until training may continue on all ranks
    usable_ms: float  # until the checkpoint is on disk


def make_state(width: int, trains: Iterable[int]) -> tuple[State, list[Tensor]]:
    """Weights and AdamW's moments of an eight-layer network, and the tensors that will change.

    Args:
        trains: the layers that train; the others are frozen, and have no moments.
    """
    torch.manual_seed(0)
    state: State = {f"{number}.weight": torch.randn(width, width) for number in range(8)}
    changing = []
    for number in trains:
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{number}.{moment}"] = torch.rand(width, width)
        changing += [tensor for name, tensor in state.items() if name.startswith(f"{number}.")]
    return state, changing


def save_repeatedly(
    save: Save, width: int, trains: list[int], folder: Path, repeats: int
) -> dict[str, Any]:
    """On each rank of a group: save after each of some steps, and time it.

    The first save isn't counted: it allocates buffers, and it has nothing to be incremental to.
    """
    state, changing = make_state(width, trains)
    memory: dict[str, Any] = {}  # what this way to save keeps from one save to the next
    blocked, usable, sizes = [], [], list[int]()
    for number in range(repeats + 1):
        for tensor in changing:
            tensor.add_(0.01)  # a step
        target = folder / f"step-{number}"
        target.mkdir(exist_ok=True)
        dist.barrier()
        began = time.perf_counter()
        pending = save(state, target, memory)
        dist.barrier()
        blocked.append(1e3 * (time.perf_counter() - began))
        if pending is not None:  # only a rank that writes in the background has to wait
            pending.result()
        done_ms = 1e3 * (time.perf_counter() - began)
        usable.append(blocked[-1] if pending is None else done_ms)
        dist.barrier()
        sizes = [path.stat().st_size for path in target.iterdir()]
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(target)
    return {"sizes": sizes, "blocked": blocked[1:], "usable": usable[1:]}


def cost_of(
    name: str, save: Save, folder: Path, *, width: int, trains: Iterable[int], repeats: int
) -> Cost:
    """Measure one way to save on two ranks."""
    where = folder / name.replace(" ", "-").replace(",", "")
    where.mkdir()
    answer = on_ranks(save_repeatedly, 2, save, width, list(trains), where, repeats)[0]
    return Cost(
        name,
        len(answer["sizes"]),
        sum(answer["sizes"]) / 1e6,
        max(answer["sizes"]) / 1e6,
        statistics.median(answer["blocked"]),
        statistics.median(answer["usable"]),
    )


def print_costs(costs: Iterable[Cost]) -> None:
    """One line per way to save."""
    print(f"{'':26}files   MB total   MB largest   training waits   usable after")
    for cost in costs:
        sizes = f"{cost.files:5}{cost.total_mb:11.1f}{cost.largest_mb:13.1f}"
        times = f"{cost.blocked_ms:14.1f} ms{cost.usable_ms:12.1f} ms"
        print(f"{cost.name:26}{sizes}{times}")

"""Faults that a rank brings on itself: called in it before the trainer starts.

partial(die, rank=1, step=7)        a ``prepare`` of ``forked.Job``
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def is_rank(rank: int | None) -> bool:
    """Whether this process is ``rank``, or a loader worker of it; None means every rank."""
    return rank is None or os.environ.get("RANK", "0") == str(rank)


def at_step(step: int, act: Callable[[], None], when: str = "before the ledger") -> None:
    """Call ``act`` when the optimizer has taken ``step``, before or after its ledger line."""
    from trainer_core.ledger import Ledger

    add = Ledger.add

    def acting(self: Ledger, at: int, *rest: object) -> None:
        if at == step and when == "before the ledger":
            act()
        add(self, at, *rest)  # type: ignore[arg-type]
        if at == step and when == "after the ledger":
            act()

    Ledger.add = acting  # type: ignore[method-assign,assignment]


def signal_itself(
    signal_: signal.Signals, rank: int | None, step: int, when: str = "before the ledger"
) -> None:
    """Have a rank send itself a signal after ``step``."""
    if is_rank(rank):
        at_step(step, lambda: os.kill(os.getpid(), signal_), when)


def both(*acts: Callable[[], None]) -> None:
    """Several things at once."""
    for act in acts:
        act()


def signal_in_the_save(signal_: signal.Signals, step: int) -> None:
    """Have rank 0 send itself a signal between the files and the rename of a checkpoint."""
    writer: Any = importlib.import_module("trainer_core.checkpoint_writer")

    verify_and_rename = writer.publish

    def signalling(temporary: Path, target: Path, facts: Mapping[str, Any]) -> None:
        if facts["step"] == step:
            os.kill(os.getpid(), signal_)
            time.sleep(0.2)  # if the save is async, the training goes on beside it
        verify_and_rename(temporary, target, facts)

    writer.publish = signalling


def fail_in(place: str, act: Callable[[], None], rank: int, call: int) -> None:
    """Call ``act``, which raises, on one rank in its ``call``-th forward, read or event."""
    import trainer_core.run_log
    from trainer_core.datasets import ToyClassificationDataset
    from trainer_core.model import TinyNet

    owner, name = {
        "forward": (TinyNet, "forward"),
        "loader": (ToyClassificationDataset, "batch"),
        "logging": (trainer_core.run_log, "log_rank_event"),
    }[place]
    original, calls = getattr(owner, name), count(1)

    def failing(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call and is_rank(rank):
            act()
        return original(*arguments, **named)

    setattr(owner, name, failing)


def fail() -> None:
    """What a defect in somebody's code does."""
    raise ArithmeticError("a defect in the code of this rank")


def fill_the_disk() -> None:
    """What a full disk does to whoever writes."""
    raise OSError(28, "No space left on device")


def exhaust_memory(limit: str, with_torch: bool) -> None:
    """Allocate a GiB where there is none, and leave only a little for what comes after."""
    if limit == "address space":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, kind = pages * resource.getpagesize() + 2**25, resource.RLIMIT_AS
    else:
        data = Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]
        soft, kind = int(data) * 1024 + 2**25, resource.RLIMIT_DATA
    resource.setrlimit(kind, (soft, resource.RLIM_INFINITY))
    if with_torch:
        torch.empty(2**30, dtype=torch.uint8)
    else:
        bytearray(2**30)


def poison(sample: int) -> None:
    """Make a sample of the toy data NaN, for whichever rank trains it."""
    from trainer_core.datasets import ToyClassificationDataset

    batch = ToyClassificationDataset.batch

    def poisoned(self: Any, samples: Any) -> Any:
        inputs, targets = batch(self, samples)
        inputs[torch.as_tensor(samples) == sample] = float("nan")
        return inputs, targets

    ToyClassificationDataset.batch = poisoned  # type: ignore[method-assign]


def pause(rank: int, step: int, until: Path) -> None:
    """Have a rank wait after ``step`` until a file appears."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not until.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    if is_rank(rank):
        at_step(step, wait, "after the ledger")


def signal_at_the_vote(signal_: signal.Signals, rank: int, step: int, when: str) -> None:
    """Have a rank send itself a signal before the ranks vote in ``step``, or right after.

    Before: the peers wait for its vote. After: they wait for it in the next collective, which
    is where the host reads the step's records.
    """
    launch: Any = importlib.import_module("trainer_core.launch")
    ask, calls = launch.any_rank, count(1)

    def signalling(*claims: bool) -> Callable[[], list[bool]]:
        is_now = next(calls) == step and is_rank(rank)
        if is_now and when == "before":
            os.kill(os.getpid(), signal_)
        answers = ask(*claims)

        def fetch() -> list[bool]:
            found: list[bool] = answers()
            if is_now and when == "after":
                os.kill(os.getpid(), signal_)
            return found

        return fetch

    launch.any_rank = signalling


def start_the_scaler_at(scale: float) -> None:
    """Begin fp16 training with a loss scale so large that gradients overflow."""
    launch: Any = importlib.import_module("trainer_core.launch")
    build = launch.build_scaler

    def scaled(cfg: Any, device: torch.device) -> torch.amp.GradScaler | None:
        scaler: torch.amp.GradScaler | None = build(cfg, device)
        return scaler and torch.amp.GradScaler(device.type, init_scale=scale)

    launch.build_scaler = scaled


def print_the_backends() -> None:
    """Print which backend carries the tensors of each device, once the group is there."""
    launch: Any = importlib.import_module("trainer_core.launch")
    join = launch.maybe_init_dist

    def joining(cfg: Any) -> Any:
        info = join(cfg)
        devices = ["cpu"] + (["cuda"] if info.device.type == "cuda" else [])
        group = dist.group.WORLD
        assert group is not None
        names = [f"{d}={group._get_backend(torch.device(d)).name()}" for d in devices]
        # One write: the ranks share a terminal, and a line must not be torn.
        os.write(1, f"backends: {' '.join(names)}\n".encode())
        return info

    launch.maybe_init_dist = joining

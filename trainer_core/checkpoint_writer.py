"""Who writes checkpoints, and what training may do meanwhile: snapshots, one save at a time.

Leaned on by cell 6 (checkpoint).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# %% active="py"
from trainer_core.checkpoint_format import publish, retain


# %%
class HostSnapshot:
    """Copies of tensors in buffers that are reused: the training may go on changing its own.

    The first copy allocates, the later ones cost one memcpy. Of CUDA tensors the buffers are
    pinned.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}

    def copy(self, value: Any, path: str = "") -> Any:
        """The same tree of dicts and lists, with every tensor copied to the host."""
        if isinstance(value, dict):
            return {key: self.copy(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [self.copy(item, f"{path}/{index}") for index, item in enumerate(value)]
        if not isinstance(value, Tensor):
            return value
        buffer = self.buffers.get(path)
        if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            buffer = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            self.buffers[path] = buffer
        return buffer.copy_(value)


def write_tensors(folder: Path, state: Any, rng_states: list[Any]) -> None:
    """Write state.pt, and the random streams of each rank.

    Raises:
        OSError: also where torch's C++ makes a RuntimeError of a full disk.
    """
    # SHA-256 guards the content; the zip's own CRC would cost as much once more.
    computes_crc = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, folder / "state.pt")
        for rank, rng_state in enumerate(rng_states):
            torch.save(rng_state, folder / f"rng-rank-{rank}.pt")
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise  # of the device: no disk can be blamed
    except RuntimeError as error:
        raise OSError(f"{folder}: torch.save cannot write there ({error})") from error
    finally:
        torch.serialization.set_crc32_options(computes_crc)


@dataclass(slots=True)
class CheckpointWriter:
    """Writes the checkpoints of one run, one at a time.

    Args:
        checkpoints: RUN/checkpoints.
        keep_last: how many to keep.
        is_async: return when the snapshot is taken, not when it is published.
        report: called with an event's name, step and seconds, maybe from another thread.
    """

    checkpoints: Path
    keep_last: int
    is_async: bool
    report: Callable[..., None]
    snapshot: HostSnapshot = field(default_factory=HostSnapshot)
    pool: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))
    in_flight: Future[None] | None = None

    def save(self, state: Any, rng_states: list[Any], manifest: dict[str, Any]) -> None:
        """Publish ``state`` as the step that ``manifest`` names, now or beside the training.

        Raises:
            Exception: what the save in flight has failed with, or this one if it is not async.
        """
        self.wait()
        if self.is_async:
            state = self.snapshot.copy(state)
        self.in_flight = self.pool.submit(self._write, state, rng_states, manifest)
        if not self.is_async:
            self.wait()

    def _write(self, state: Any, rng_states: list[Any], manifest: dict[str, Any]) -> None:
        began = time.perf_counter()
        temporary = self.checkpoints / f"tmp-{os.urandom(16).hex()}"
        temporary.mkdir(parents=True)
        try:
            write_tensors(temporary, state, rng_states)
            publish(temporary, self.checkpoints / f"step-{manifest['step']:08d}", manifest)
        except BaseException:
            # On a full disk the next start could not even begin beside a half of this one.
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        retain(self.checkpoints, self.keep_last)
        seconds = round(time.perf_counter() - began, 6)
        self.report("checkpoint_saved", step=manifest["step"], seconds=seconds)

    def error(self) -> BaseException | None:
        """What the save in flight has failed with, if it has ended."""
        flight = self.in_flight
        return flight.exception() if flight and flight.done() else None

    def wait(self) -> None:
        """Wait for the save in flight, and raise what it has failed with."""
        flight, self.in_flight = self.in_flight, None
        if flight is not None:
            flight.result()

"""How checkpoints are written while training continues: from a snapshot, one save at a time.

Supports cell 6 (checkpoint).
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
    """Copies of tensors in reused host buffers, so training can keep changing the originals.

    The first copy allocates the buffers; later ones cost one memcpy. Buffers for CUDA tensors
    are pinned.
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
    """Write state.pt, and one file of random states per rank.

    Raises:
        OSError: also where torch's C++ code reports a full disk as a RuntimeError.
    """
    # SHA-256 already guards the content; the zip's own CRC would cost a second pass.
    computes_crc = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, folder / "state.pt")
        for rank, rng_state in enumerate(rng_states):
            torch.save(rng_state, folder / f"rng-rank-{rank}.pt")
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise  # the device's error, not the disk's
    except RuntimeError as error:
        raise OSError(f"{folder}: torch.save failed there ({error})") from error
    finally:
        torch.serialization.set_crc32_options(computes_crc)


# %%
@dataclass(slots=True)
class CheckpointWriter:
    """Writes the checkpoints of one run, one at a time.

    Args:
        checkpoints: RUN/checkpoints.
        keep_last: how many to keep.
        is_async: return once the snapshot is taken, not once it is published.
        report: called with an event's name, its step and seconds; maybe from another thread.
    """

    checkpoints: Path
    keep_last: int
    is_async: bool
    report: Callable[..., None]
    snapshot: HostSnapshot = field(default_factory=HostSnapshot)
    pool: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))
    in_flight: Future[None] | None = None

    def save(self, state: Any, rng_states: list[Any], manifest: dict[str, Any]) -> None:
        """Publish ``state`` as the step that ``manifest`` names, now or in the background.

        Raises:
            Exception: from the save in flight, or from this one if it is not async.
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
            # If the disk is full, the next start needs the space that half a save takes up.
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        retain(self.checkpoints, self.keep_last)
        seconds = round(time.perf_counter() - began, 6)
        self.report("checkpoint_saved", step=manifest["step"], seconds=seconds)

    def error(self) -> BaseException | None:
        """The error of the save in flight, if it has failed."""
        flight = self.in_flight
        return flight.exception() if flight and flight.done() else None

    def wait(self) -> None:
        """Wait for the save in flight, and raise its error if it has one."""
        flight, self.in_flight = self.in_flight, None
        if flight is not None:
            flight.result()

    def close(self) -> None:
        """Let the save in flight finish; afterwards nothing writes."""
        self.pool.shutdown()

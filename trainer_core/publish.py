"""How a folder of files becomes a checkpoint: whole, verified, or not there at all.

Leaned on by cell 6 (checkpoint). Names below RUN/checkpoints:

    step-00000120            published: whole, or damaged later
    tmp-...                  being written, or left behind by a kill
    rejected-step-...        found damaged and set aside
    old-step-...             on its way out
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# %% active="py"
from trainer_core.settings import UserError

# %%
FORMAT = 1
NOT_A_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DamagedCheckpoint(Exception):
    """A published folder whose content is not what its manifest says."""


def describe(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 (hex) of a file, as the file system gives it back."""
    with path.open("rb") as file:
        # In this order: what has been read is its size.
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": file.tell()}


def fsync_path(path: Path) -> None:
    """Ask the disk to keep a file's content, or a folder's names, over a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_sha256(manifest: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a manifest without its own hash, as canonical JSON."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# %%
def publish(temporary: Path, target: Path, facts: Mapping[str, Any]) -> None:
    """Turn the files in ``temporary`` into the checkpoint ``target``.

    Order matters: contents first, then the manifest, which vouches for them, then one rename,
    which is the publication, then the folder that holds the new name; each on disk before the
    next.

    Raises:
        FileExistsError: if ``target`` exists; a checkpoint is never written into.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists; a published checkpoint is never rewritten")
    paths = sorted(temporary.iterdir())
    with ThreadPoolExecutor() as pool:
        # Hashing reads the page cache while the disk is still writing.
        syncing = pool.map(fsync_path, paths)
        files = {path.name: describe(path) for path in paths}
        list(syncing)
    manifest = {"format": FORMAT, **facts, "files": files}
    manifest["sha256"] = manifest_sha256(manifest)
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
    fsync_path(temporary / "manifest.json")
    fsync_path(temporary)
    temporary.rename(target)
    fsync_path(target.parent)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a published folder whose files all hold.

    Raises:
        DamagedCheckpoint: saying which file, what was found and what the manifest says.
        UserError: if the format is newer than this code.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] > FORMAT:
            raise UserError(
                f"{folder}: format {manifest['format']}, but this code reads up to {FORMAT}. "
                "To read it wrongly would be worse than to stop. Update trainer_core."
            )
        files = {"state.pt": "nothing", **manifest["files"]}  # what is loaded is vouched for
        found: dict[str, Any] = {name: describe(folder / name) for name in files}
        found |= {"manifest.json": manifest_sha256(manifest), "step": int(folder.name[5:])}
        said = {"manifest.json": manifest["sha256"], "step": manifest["step"]}
    except UserError:
        raise
    # Another OSError (no permission, a disk that does not answer) says nothing of the content.
    except (*NOT_A_FILE, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{type(error).__name__}: {error}") from error
    for name, what in {**said, **files}.items():
        if found[name] != what:
            raise DamagedCheckpoint(f"{name} is {found[name]}, the manifest says {what}")
    return manifest


# %%
def published_steps(checkpoints: Path) -> dict[int, Path]:
    """Published checkpoints by step, the newest first. Compared as numbers, not as text.

    Raises:
        OSError: if the folder is there but cannot be read.
    """
    # Not glob: it shows a folder that may not be read as an empty one, and the run would begin
    # again.
    try:
        paths = [*checkpoints.iterdir()]
    except FileNotFoundError:
        paths = []
    steps = {int(path.name[5:]): path for path in paths if re.fullmatch(r"step-\d+", path.name)}
    return dict(sorted(steps.items(), reverse=True))


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint so that it is neither chosen again nor lost."""
    aside = folder.rename(folder.with_name(f"rejected-{folder.name}-{os.urandom(4).hex()}"))
    fsync_path(folder.parent)
    return aside


def retain(checkpoints: Path, keep_last: int) -> None:
    """Delete all but the newest checkpoints, once the newest has been read back.

    Each goes by a rename before its files go, so a kill leaves no half of it under a name that
    a restore would choose.

    Raises:
        DamagedCheckpoint: if the newest does not hold; nothing is deleted then.
    """
    folders = list(published_steps(checkpoints).values())
    if len(folders) > keep_last:
        verify(folders[0])
    for folder in folders[keep_last:]:
        folder.rename(folder.with_name(f"old-{folder.name}-{os.urandom(4).hex()}"))
    remove_leftovers(checkpoints, "old-*")


def remove_leftovers(checkpoints: Path, pattern: str) -> None:
    """Delete folders that are being deleted (``old-*``) or were never finished (``tmp-*``)."""
    for leftover in checkpoints.glob(pattern):
        # A link, to a checkpoint that its user has moved to another disk, leaves that alone.
        leftover.unlink() if leftover.is_symlink() else shutil.rmtree(leftover)


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

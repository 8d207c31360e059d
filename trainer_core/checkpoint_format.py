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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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

"""How a folder of files becomes a checkpoint: published, verified, kept or removed.

Supports cell 6 (checkpoint). Names below RUN/checkpoints:

    step-00000120            published: intact, unless it was damaged later
    tmp-...                  being written, or left behind by a kill
    rejected-step-...        found damaged and set aside
    old-step-...             being deleted
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
UNWRITTEN = r"tmp-[0-9a-f]{32}"
UNDELETED = r"old-step-\d+-[0-9a-f]{8}"
NOT_A_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DamagedCheckpoint(Exception):
    """A published folder whose content doesn't match its manifest."""


def describe(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 (hex) of a file, as the file system returns it."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()  # after hashing, the position is the number of bytes read
        return {"sha256": sha256, "size": size}


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power loss."""
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

    Its manifest is {"format": FORMAT, **facts, "files": {name: describe(path)}}, and the
    ``manifest_sha256`` of that under "sha256".

    Raises:
        FileExistsError: if ``target`` exists; nothing is ever written into a checkpoint.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists, and a published checkpoint is never rewritten")
    # The order matters: the contents; then the manifest, which vouches for them; then one
    # rename, which publishes them; then the folder that holds the new name. Each reaches the
    # disk before the next begins.
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
    """Check a published folder against its manifest, and return the manifest.

    Raises:
        DamagedCheckpoint: naming the file, what was found and what the manifest says.
        UserError: if the format is newer than this code.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] > FORMAT:
            raise UserError(
                f"{folder}: format {manifest['format']}, but this code reads up to {FORMAT}. "
                "Misreading it would be worse than stopping. Update trainer_core."
            )
        # state.pt is what gets loaded, so a manifest has to list it.
        files = {"state.pt": "nothing", **manifest["files"]}
        expected = {"manifest.json": manifest["sha256"], "step": manifest["step"], **files}
        found: dict[str, Any] = {name: describe(folder / name) for name in files}
        found["manifest.json"] = manifest_sha256(manifest)
        found["step"] = int(folder.name[5:])
    except UserError:
        raise
    # Any other OSError (no permission, a disk that doesn't answer) says nothing about content.
    except (*NOT_A_FILE, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{type(error).__name__}: {error}") from error
    for name, value in expected.items():
        if found[name] != value:
            raise DamagedCheckpoint(f"{name} is {found[name]}, but the manifest says {value}")
    return manifest


# %%
def published_steps(checkpoints: Path) -> dict[int, Path]:
    """Published checkpoints by step, newest first. Steps are compared as numbers, not as text.

    Raises:
        OSError: if the folder exists but can't be read.
    """
    # Not glob: it reports an unreadable folder as empty, and the run would start from scratch.
    try:
        paths = list(checkpoints.iterdir())
    except FileNotFoundError:
        paths = []
    steps = {int(path.name[5:]): path for path in paths if re.fullmatch(r"step-\d+", path.name)}
    return dict(sorted(steps.items(), reverse=True))


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither chosen again nor lost."""
    aside = folder.rename(folder.with_name(f"rejected-{folder.name}-{os.urandom(4).hex()}"))
    fsync_path(folder.parent)
    return aside


def retain(checkpoints: Path, keep_last: int) -> None:
    """Delete all but the newest checkpoints, after reading the newest one back.

    Each folder is renamed before its files are deleted, so a kill never leaves half of one
    under a name that a restore would choose.

    Raises:
        DamagedCheckpoint: if the newest one fails verification; nothing is deleted then.
    """
    folders = list(published_steps(checkpoints).values())
    if len(folders) > keep_last:
        verify(folders[0])
    for folder in folders[keep_last:]:
        folder.rename(folder.with_name(f"old-{folder.name}-{os.urandom(4).hex()}"))
    remove_leftovers(checkpoints, UNDELETED)


def remove_leftovers(checkpoints: Path, names: str) -> None:
    """Delete folders whose writing or deletion never finished, and nothing else.

    Args:
        names: a regular expression: ``UNWRITTEN`` or ``UNDELETED``.
    """
    for leftover in list(checkpoints.iterdir()):
        if not re.fullmatch(names, leftover.name) or leftover.is_file():
            continue
        if leftover.is_symlink():
            # Someone moved this checkpoint to another disk: remove the link, not its target.
            leftover.unlink()
        else:
            shutil.rmtree(leftover)

"""What would a kill leave behind, at each change of a file? Runs in the ranks.

A copy of the folder before each file operation is what a process killed there would leave: its
buffers aren't in the copy either. That costs a tenth of killing a real process.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rehearsal.engine.rank import CHANGES, WRITES


@contextmanager
def copies_before_each_file_operation(
    folder: Path, target: Callable[[int], Path]
) -> Iterator[list[tuple[str, Path]]]:
    """Copy ``folder`` before each operation in it, as long as the context lasts.

    Yields the list that the copies go to, each with what came next.

    Args:
        target: where the n-th copy goes, from 1.
    """
    found: list[tuple[str, Path]] = []
    is_open = True
    save, sync = torch.save, os.fsync

    def take(what: str, path: object) -> Path | None:
        nonlocal is_open
        name = os.fsdecode(str(path))
        if not is_open or not os.path.abspath(name).startswith(f"{folder}{os.sep}"):
            return None
        is_open = False  # copying opens files, too
        copy = shutil.copytree(folder, target(len(found) + 1))
        is_open = True
        found.append((f"{what} {os.path.basename(name)}", copy))
        return copy

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            take("the opening of", arguments[0])
        elif event in CHANGES:
            take(f"the {event.removeprefix('os.')} of", arguments[0])

    def watched_save(obj: object, file: Any, *arguments: Any, **keywords: Any) -> None:
        # Torch opens a path on its own, without an audit event.
        if not isinstance(file, str | os.PathLike):
            save(obj, file, *arguments, **keywords)
            return
        take("the torch.save of", file)
        save(obj, file, *arguments, **keywords)
        if (copy := take("the second half of", file)) is not None:
            torn = copy / os.path.relpath(file, folder)
            os.truncate(torn, torn.stat().st_size // 2)

    def watched_sync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        take("the fsync of", os.readlink(f"/proc/self/fd/{number}"))
        sync(fd)

    torch.save, os.fsync = watched_save, watched_sync  # type: ignore[assignment]
    sys.addaudithook(audit)
    try:
        yield found
    finally:
        is_open = False
        torch.save, os.fsync = save, sync

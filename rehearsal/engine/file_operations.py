"""What this process is about to do to files: from Python's audit events, and from torch.save.

Not seen are other processes, libraries that write in C++, and ``os.open`` with a ``dir_fd``:
its audit event leaves the folder out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {  # the audit events, besides "open", of what changes files
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
}


class FileOperation(NamedTuple):
    """One operation, with its paths as they were passed: absolute or relative, str or bytes."""

    op: str  # "open" (to write), or one of CHANGES without its "os."
    path: Any  # what changes; a descriptor or None has no name that could be told
    to: Any = None  # with rename and link: the new name


def file_operation(event: str, arguments: tuple[Any, ...]) -> FileOperation | None:
    """The operation that an audit event announces; None if it writes no file."""
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & WRITES
        return FileOperation("open", path) if writes else None
    if event not in CHANGES:
        return None
    op = event.removeprefix("os.")
    if op in ("rename", "link"):
        path, to, folder, folder_of_to = arguments
        return FileOperation(op, in_folder(path, folder), in_folder(to, folder_of_to))
    if op == "symlink":  # changes the link, not what the link points to
        return FileOperation(op, in_folder(arguments[1], arguments[2]))
    if op == "truncate":  # its last argument is a size
        return FileOperation(op, arguments[0])
    return FileOperation(op, in_folder(arguments[0], arguments[-1]))


def in_folder(path: Any, descriptor: int) -> Any:
    """A path that may be relative to an open folder, as ``shutil.rmtree`` passes it."""
    if descriptor < 0 or os.path.isabs(path):
        return path
    folder = path_of(descriptor)
    return None if folder is None else os.path.join(folder, os.fsdecode(path))


def path_of(descriptor: int) -> str | None:
    """The path of an open file or folder; None where there is no /proc to ask, as on macOS."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def watch_torch_save(see: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``see(f)`` before torch.save writes to ``f``; returns what ends that.

    ``f`` is what torch.save got: a path, or a file object or BytesIO, for ``see`` to tell
    apart. A path is the case that needs this: torch's own writer opens it, so Python raises no
    audit event. ``see`` is not called with ``_use_new_zipfile_serialization=False``, for which
    Python opens the file.

    This replaces a private function of torch, because replacing torch.save would miss a
    ``from torch import save``. Others, such as the recorder of a rank, may have replaced it
    before. So end what began last first: ending restores what was found at the beginning, and
    would otherwise bring an ended watch back.
    """
    module: Any = torch.serialization
    opens = module._open_zipfile_writer

    @functools.wraps(opens)
    def watched(file: Any) -> Any:
        see(file)
        return opens(file)

    def unwatch() -> None:
        module._open_zipfile_writer = opens

    module._open_zipfile_writer = watched
    return unwatch

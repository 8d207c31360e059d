"""In which order is a folder listed? The file system's choice, so nothing may depend on it.

Some list the files that were created last first, as tmpfs does, others in no apparent order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

LISTDIR, SCANDIR = os.listdir, os.scandir


class Entries:
    """What ``os.scandir`` returns, sorted backward by name."""

    def __init__(self, path: Any = ".") -> None:
        with SCANDIR(path) as entries:
            self.entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=True))

    def __iter__(self) -> Iterator[os.DirEntry[Any]]:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self.entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""


def list_backward(_: object = None) -> None:
    """From here on, list folders in this process backward by name: the newest step comes first.

    That holds for ``os.listdir``, ``os.scandir``, ``os.walk``, ``glob`` and ``Path.glob``. Code
    that takes the last of an unsorted list gets the oldest checkpoint.
    """
    os.listdir = lambda path=".": sorted(LISTDIR(path), reverse=True)  # type: ignore[assignment]
    os.scandir = Entries  # type: ignore[assignment]

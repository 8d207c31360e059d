"""File modes that deny a run access. Root ignores modes, so its ranks become another user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rehearsal.engine.programs import Prepare

NOBODY = 65534
DENIED = os.strerror(errno.EACCES)  # what a refusal because of a file mode says


def why_modes_mean_nothing(root: Path) -> str:
    """Why file modes cannot be tested here; "" if they can.

    Args:
        root: the folder of all runs; made passable for other users. If a folder above it is
            closed, the other user is refused whatever the mode under test.
    """
    if os.geteuid() != 0:
        return ""
    root.chmod(0o711)
    try:
        os.seteuid(NOBODY)
    except OSError as error:
        return f"root ignores file modes, and cannot become another user here: {error}"
    try:
        os.stat(root / ".")
    except OSError as error:
        return f"root ignores file modes, and another user cannot reach the runs: {error}"
    finally:
        os.seteuid(0)
    return ""


def become_nobody() -> None:
    """Become a user to whom file modes apply."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


@contextmanager
def with_mode(root: Path, run_dir: Path, name: str, mode: int) -> Iterator[Prepare]:
    """Give a file or folder of a run another mode for a while.

    Args:
        root: the folder of all runs; made passable for other users.

    Yields:
        The ``prepare`` of a job: it makes each rank a user to whom the mode applies.
    """
    if os.geteuid() == 0:
        root.chmod(0o711)
        for path in (run_dir, *run_dir.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    path = run_dir / name
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield become_nobody
    finally:
        path.chmod(before)

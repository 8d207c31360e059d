"""Nothing here is imported by name; jobs.py holds what tests share."""

from __future__ import annotations

import os
import signal

import pytest

# Several ranks on few cores: one thread each, or they fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What takes too long for each run."""
    parser.addoption(
        "--full-matrix", action="store_true",
        help="kill and resume in all 96 cells of tests/test_resume.py instead of 16",
    )  # fmt: skip


def pytest_unconfigure() -> None:
    """Let go of what lasts as long as this process."""
    from multiprocessing.forkserver import _forkserver

    from trainer_core.runfolder import hold_lock

    # Locks of the runs made here: the interpreter would name each after pytest's last line.
    for file in hold_lock.__defaults__[0].values():
        file.close()
    # The server of the ranks: the interpreter would wait for it, and it for its pipe.

    server = getattr(_forkserver, "_forkserver_pid", None)
    if server is not None:
        os.kill(server, signal.SIGKILL)

"""Nothing here is imported by name; jobs.py holds what tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Several ranks on few cores: one thread each, or they fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# For scripts/mutate.py: that a test fails is enough, the smallest example takes minutes.
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])


@pytest.fixture(autouse=True)
def rehearsal_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A history of its own for each test: the developer's is not for tests to write into."""
    folder = tmp_path_factory.mktemp("home", numbered=True)
    monkeypatch.setenv("REHEARSAL_HOME", str(folder))
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """What takes too long for each run."""
    parser.addoption(
        "--full-matrix", action="store_true",
        help="kill and resume in all 96 cells of tests/test_resume.py instead of 16",
    )  # fmt: skip
    parser.addoption(
        "--all-texts", action="store_true",
        help="judge every text of every drill in tests/test_drills.py instead of two",
    )  # fmt: skip


def pytest_unconfigure() -> None:
    """End the server of the ranks: the interpreter would wait for it, and it for its pipe."""
    from multiprocessing.forkserver import _forkserver

    server = getattr(_forkserver, "_forkserver_pid", None)
    if server is not None:
        os.kill(server, signal.SIGKILL)

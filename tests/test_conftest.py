"""What conftest.py promises: the marker ``ranks`` is enforced; kernels get their own ports."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys

import pytest
from jupyter_client.connect import LocalPortCache

FORBIDDEN = pytest.raises(pytest.fail.Exception, match=r"marker: @pytest\.mark\.ranks")


class TestTheMarker:
    def test_an_unmarked_test_cannot_start_an_interpreter(self) -> None:
        """`make check` would take minutes, and nobody would know why."""
        with FORBIDDEN:
            subprocess.Popen([sys.executable, "-c", ""])

    def test_an_unmarked_test_cannot_fork(self) -> None:
        """A loader worker is a process as well."""
        with FORBIDDEN:
            if os.fork() == 0:
                os._exit(0)

    @pytest.mark.parametrize("method", ["fork", "forkserver"])
    def test_an_unmarked_test_cannot_use_multiprocessing(self, method: str) -> None:
        """The fork server forks in another process, where this one sees nothing."""
        with FORBIDDEN:
            multiprocessing.get_context(method).Process(target=print).start()

    @pytest.mark.ranks
    def test_a_marked_test_can(self) -> None:
        """Otherwise the rule would forbid the tests it is about."""
        assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0


def test_a_kernel_gets_a_port_that_the_system_gives_to_nobody() -> None:
    """With one of those, another test's process may be quicker, and the kernel dies."""
    cache = LocalPortCache.instance()
    with socket.socket() as taken:
        first = cache.find_available_port("127.0.0.1")
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        assert 20_000 <= first < 30_000
        assert cache.find_available_port("127.0.0.1") not in (first, first + 1)

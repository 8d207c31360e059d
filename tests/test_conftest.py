"""A test that starts a process carries the marker ``ranks``, or it fails."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

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

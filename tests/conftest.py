"""What every test gets: its own home, one torch thread, and the rule about processes."""

from __future__ import annotations

import gc
import itertools
import multiprocessing.process
import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from jupyter_client.connect import LocalPortCache
from xdist.scheduler import LoadScopeScheduling

import handbook_chapters
from rehearsal.engine import programs

# Several ranks share few cores: with more threads than one each they fight for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A check at a terminal would leave a process behind for ten minutes; its own tests allow it.
os.environ["REHEARSAL_NO_SERVER"] = "1"
# The developer's language model is not asked by tests.
for name in ("URL", "MODEL", "KEY"):
    os.environ.pop(f"REHEARSAL_LLM_{name}", None)

# No test fails because the machine is busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# For scripts/mutate.py: it is enough that a test fails; shrinking the example takes minutes.
settings.register_profile("mutants", deadline=None, phases=[Phase.explicit, Phase.generate])


@pytest.fixture(autouse=True)
def rehearsal_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A history for each test, so that none writes into the developer's."""
    folder = tmp_path_factory.mktemp("home", numbered=True)
    monkeypatch.setenv("REHEARSAL_HOME", str(folder))
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """What takes too long for every run."""
    parser.addoption(
        "--full-matrix",
        action="store_true",
        help="kill and resume in all 96 cells of tests/test_resume.py instead of 16",
    )
    parser.addoption(
        "--all-texts",
        action="store_true",
        help="judge every text of every drill in tests/test_drills.py instead of two",
    )


def is_of_a_chapter(nodeid: str) -> bool:
    """Whether a test may run a chapter of the handbook."""
    return "test_handbook_" in nodeid


class ChaptersTogether(LoadScopeScheduling):
    """One worker runs all tests of a class, and all tests of a chapter of the handbook."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        # All of them use the chapter that one fixture has run, which takes up to a minute.
        return scope.partition("::")[0] if is_of_a_chapter(scope) else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With --dist loadscope, keep a chapter's tests together; otherwise xdist decides."""
    return ChaptersTogether(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_configure() -> None:
    """Give the kernels of executed notebooks ports that nobody else is given.

    jupyter_client lets the system choose them, and a kernel binds them seconds later. Meanwhile
    the system may give one to another test's process, and the kernel dies.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    # Below the ports that Linux chooses from, and each worker's apart from the others'. Two
    # runs at a time, as scripts/mutate.py starts them, begin at different ones.
    own = range(20_000 + 1000 * worker, 21_000 + 1000 * worker)
    first = random.Random(os.getpid()).randrange(len(own))
    ports = itertools.cycle([*own[first:], *own[:first]])

    def is_free(port: int) -> bool:
        with socket.socket() as candidate:
            return candidate.connect_ex(("127.0.0.1", port)) != 0

    def find_available_port(cache: LocalPortCache, ip: str) -> int:
        return next(port for port in ports if is_free(port))

    pytest.MonkeyPatch().setattr(LocalPortCache, "find_available_port", find_available_port)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: each launch.run ends with a collection.

    With torch and all tests in memory, one collection takes 0.3 s.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Kill the server that forks programs and ranks; the interpreter would wait for it."""
    programs.shut_down()


# ---------------------------------------------------------------- the marker ``ranks``

# The running test, if it lacks the marker: `make check` would run it, so it must stay quick.
unmarked: list[str] = []


def forbid_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: fail an unmarked test when it forks or starts an interpreter."""
    if event not in ("os.fork", "subprocess.Popen") or not unmarked:
        return
    command = str(arguments[0]) if arguments else "fork"
    # Tools such as git, sleep, fc-list and uname take milliseconds.
    if event == "os.fork" or Path(command).name.startswith(("python", "make")):
        # Not an Exception: launch.py answers those by exiting, and this process is pytest.
        pytest.fail(
            f"{unmarked[0]} starts a process ({command}), so it needs the marker: "
            "@pytest.mark.ranks. `make check` runs only tests without it."
        )


sys.addaudithook(forbid_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Forbid processes from the first fixture of an unmarked test to the last."""
    # A notebook, collected by nbmake, always has a kernel of its own.
    if isinstance(item, pytest.Function) and item.get_closest_marker("ranks") is None:
        unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        unmarked.clear()
        if is_of_a_chapter(item.nodeid) and not (nextitem and is_of_a_chapter(nextitem.nodeid)):
            handbook_chapters.end_servers()


@pytest.fixture(autouse=True)
def no_forked_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the fork server: it forks in another process, where no hook sees it."""
    if request.node.get_closest_marker("ranks") is None:

        def refuse(*_: object) -> None:
            forbid_processes("os.fork", ())

        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)

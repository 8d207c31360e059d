"""The process that checks at a terminal share: private, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rehearsal.engine.processes import all_processes
from rehearsal.grading import check
from rehearsal.grading.drill import load
from rehearsal.grading.verdict import Verdict
from rehearsal.session import daemon_client

ROOT = Path(__file__).resolve().parents[1]
ID = "lift_to_distributed"
DRILL = load(ID)
SPINS = """\
def train(*_, **__):
    print('spinning', flush=True)
    open('%s', 'w').close()
    while True: pass
"""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "still not so after a minute"
        time.sleep(0.05)


def daemons() -> list[int]:
    """The processes that listen, or have listened, in this test's private folder."""
    mark = os.fsencode(os.environ["XDG_RUNTIME_DIR"])
    found = []
    for pid in all_processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"rehearsal.session.daemon" in words and any(w.startswith(mark) for w in words):
                found.append(pid)
    return found


def below(pid: int) -> list[int]:
    """All living descendants of a process."""
    processes, found = all_processes(), [pid]
    for ancestor in found:
        found += [child for child, stat in processes.items() if stat.parent == ancestor]
    return found[1:]


def ranks_of(daemon: int) -> list[int]:
    """What runs below a daemon's servers, of which there is one for each hash seed."""
    processes = all_processes()
    return [pid for pid in below(daemon) if processes[pid].parent != daemon]


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """pytest's own folders are too long for the address of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def allowed(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon is allowed, in a folder of its own, and ended afterward."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    monkeypatch.delenv("REHEARSAL_NO_SERVER")
    try:
        yield
    finally:
        for pid in daemons():
            children = below(pid)
            os.kill(pid, signal.SIGTERM)
            # Its server, and with it every rank, ends when it is gone.
            wait_until(lambda pids=(pid, *children): not {*pids} & set(all_processes()))


def command(file: Path) -> list[str]:
    return [sys.executable, "-m", "rehearsal", "check", ID, str(file)]


def checked(source: str) -> tuple[Verdict, list[str]]:
    lines: list[str] = []
    verdict = daemon_client.grade_source(
        ID, source, file="attempt.py", echo=lines.append, seed=5
    )
    return verdict, lines


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="not checked: processes, without /proc")
@pytest.mark.usefixtures("allowed")
class TestDaemon:
    def test_two_commands_share_one_and_judge_as_without_it(self, tmp_path: Path) -> None:
        """Loading torch for every check takes longer than the check."""
        file = tmp_path / "attempt.py"
        file.write_text("print('I am here')\n" + DRILL.solution)
        for _ in range(2):
            run = subprocess.run(command(file), capture_output=True, text=True, cwd=tmp_path)
            assert run.returncode == 0, run.stdout + run.stderr
            assert "PASSED" in run.stdout
            assert "[1] I am here" in run.stdout
        (first,) = daemons()
        miss = DRILL.near_misses()[0].text
        verdict, _ = checked(miss)
        here = check.grade_source(ID, miss, seed=5)
        assert daemons() == [first]
        same = ("status", "findings", "detail", "after", "seed")
        assert [getattr(verdict, n) for n in same] == [getattr(here, n) for n in same]

    def test_the_callers_environment_and_folder_are_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second caller's file may import what lies beside it, and read its variables."""
        for number in ("1", "2"):
            folder = tmp_path / number
            folder.mkdir()
            (folder / f"beside_{number}.py").write_text(f"print('beside {number}')\n")
            monkeypatch.setenv("MY_NUMBER", number)
            monkeypatch.syspath_prepend(folder)
            source = "import os\n__import__('beside_' + os.environ['MY_NUMBER'])\n"
            _, lines = checked(source + DRILL.blank)
            assert f"[0] beside {number}" in lines

    @pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGKILL])
    def test_a_caller_that_is_interrupted_or_killed_stops_its_ranks(
        self, tmp_path: Path, ends: signal.Signals
    ) -> None:
        """A rank that spins on after Ctrl-C slows down every check that follows."""
        file = tmp_path / "attempt.py"
        file.write_text(SPINS % (tmp_path / "spins"))
        with subprocess.Popen(
            command(file),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as caller:
            assert caller.stderr is not None
            wait_until((tmp_path / "spins").exists)
            (daemon,) = daemons()
            assert ranks_of(daemon)
            caller.send_signal(ends)
            code, said = caller.wait(60), caller.stderr.read()
        if ends == signal.SIGINT:
            assert code == 130
            assert "the check was interrupted" in said
            assert not ranks_of(daemon), "when the command returns, its ranks are gone"
        wait_until(lambda: not ranks_of(daemon))
        verdict, _ = checked(DRILL.solution)
        assert verdict.status == "passed"
        assert daemons() == [daemon]

    def test_when_the_code_has_changed_it_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An edit of a grader must not be judged by the grader before it."""
        checked(DRILL.blank)
        (old,) = daemons()
        monkeypatch.setattr(daemon_client, "digest_of_code", lambda: "edited")
        assert checked(DRILL.blank)[0].status == "not_attempted"
        wait_until(lambda: old not in daemons())
        assert len(daemons()) == 1

    def test_it_ends_by_itself_when_nobody_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody ends a process that they do not know of."""
        monkeypatch.setattr(daemon_client, "IDLE_S", 0.5)
        checked(DRILL.blank)
        wait_until(lambda: not daemons())
        assert not daemon_client.address().exists()

    def test_one_that_is_killed_leaves_no_rank_and_the_check_goes_on(
        self, tmp_path: Path
    ) -> None:
        """The out-of-memory killer may choose it."""
        mark = tmp_path / "mark"
        kills = (
            "import os, pathlib, signal\n"
            f"mark = pathlib.Path({str(mark)!r})\n"
            "if os.environ['RANK'] == '0' and not mark.exists():\n"
            "    mark.write_text('')\n"
            "    stat = pathlib.Path(f'/proc/{os.getppid()}/stat').read_text()\n"
            "    os.kill(int(stat.rpartition(')')[2].split()[1]), signal.SIGKILL)\n"
        )
        checked(DRILL.blank)
        (daemon,) = daemons()
        children = below(daemon)
        verdict, lines = checked(kills + DRILL.solution)
        assert verdict.status == "passed"
        assert f"{daemon_client.ENDED} {daemon_client.WITHOUT}" in lines
        wait_until(lambda: not {daemon, *children} & set(all_processes()))


class TestClient:
    @pytest.mark.usefixtures("allowed")
    @pytest.mark.parametrize("text", ["", "def train(:\n"])
    def test_what_no_rank_has_to_run_starts_nothing(self, text: str) -> None:
        """A syntax error is reported at once (this test may not start a process)."""
        assert checked(text)[0].status in ("not_attempted", "crashed")
        assert daemons() == []

    def test_a_folder_that_others_can_enter_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever owns the socket sees what you type, and decides the verdict."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setattr(
            check, "grade_source", lambda drill, *_, **__: Verdict(drill=drill, status="wrong")
        )
        folder = tmp_path / f"rehearsal-{os.getuid()}"
        folder.mkdir(mode=0o700)
        folder.chmod(0o755)
        verdict, (line,) = checked("x = 1\n")
        assert verdict.status == "wrong"
        assert "Other users can enter" in line
        assert line.endswith(daemon_client.WITHOUT)
        folder.rmdir()
        folder.symlink_to(tmp_path)
        with pytest.raises(daemon_client.Unavailable, match="Other users can enter"):
            daemon_client.private_folder()

    def test_without_a_runtime_folder_of_its_own_it_uses_the_temporary_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After su, XDG_RUNTIME_DIR may be gone: each check loaded torch, and said Errno 2."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        for value in (str(tmp_path / "gone"), ""):
            monkeypatch.setenv("XDG_RUNTIME_DIR", value)
            assert daemon_client.private_folder().parent == tmp_path

    def test_an_error_of_the_operating_system_says_what_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """'[Errno 17] File exists: ...' alone doesn't say that the check is only slower."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setattr(
            check, "grade_source", lambda drill, *_, **__: Verdict(drill=drill, status="wrong")
        )
        (tmp_path / f"rehearsal-{os.getuid()}").touch()
        verdict, (line,) = checked("x = 1\n")
        assert verdict.status == "wrong"
        assert line.startswith("The background process can't be used ([Errno ")
        assert line.endswith("). This check runs without a background process.")

    def test_warming_up_closes_the_connection_that_it_tries(
        self, short_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An open one keeps the process, which serves one caller at a time, from the check."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            monkeypatch.setattr(daemon_client, "_connect", lambda: ours)
            daemon_client.warm_up()
            assert ours.fileno() == -1

    def test_an_address_that_is_too_long_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel refuses it with a message that says nothing."""
        long = tmp_path / ("x" * 90)
        long.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
        with pytest.raises(daemon_client.Unavailable, match="too long for a socket"):
            daemon_client.address()

    def test_the_environment_can_forbid_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """CI has nobody who checks a second time."""
        assert not daemon_client.is_wanted(), "as tests/conftest.py says"
        monkeypatch.delenv("REHEARSAL_NO_SERVER")
        assert daemon_client.is_wanted()

    def test_any_file_of_the_code_changes_the_digest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A brief is text, a drill's settings are TOML, and a grader may import the trainer."""
        monkeypatch.setattr(daemon_client, "ROOT", tmp_path)
        seen = {daemon_client.digest_of_code()}
        for name in ("rehearsal/drills/x/grader.py", "rehearsal/x.toml", "trainer_core/y.py"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
            seen.add(daemon_client.digest_of_code())
            path.write_text("12")
            seen.add(daemon_client.digest_of_code())
        assert len(seen) == 7

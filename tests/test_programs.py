"""A program in a forked process sees what it would see in a fresh interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rehearsal.engine import programs
from rehearsal.engine.programs import Program, run

pytestmark = pytest.mark.ranks

LOOK = """
import json, multiprocessing, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv,
    "name": __name__,
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "stdin": sys.stdin.read(),
    "start": multiprocessing.get_start_method(allow_none=True),
    "signals": [str(signal.getsignal(n)) for n in (2, 15, 17)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "leads_its_session": os.getsid(0) == os.getpid(),
    "threads": threading.active_count(),
}))
print("to stderr", file=sys.stderr)
"""


def test_it_sees_what_a_fresh_interpreter_sees(tmp_path: Path) -> None:
    """A test of the forked program would otherwise say nothing about the real command."""
    (tmp_path / "look.py").write_text(LOOK)
    environment = {"PATH": os.environ["PATH"], "WHO": "me", "LC_CTYPE": "C.UTF-8"}
    fresh = subprocess.run(
        [sys.executable, "look.py", "one", "--two"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        check=True,
    )
    forked = run("look.py", "one", "--two", folder=tmp_path, environment=environment)
    assert (forked.returncode, forked.stderr) == (0, fresh.stderr)
    assert json.loads(forked.stdout) == json.loads(fresh.stdout)


@pytest.mark.parametrize(
    ("code", "returncode", "stderr"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("import os; os._exit(4)", 4, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[.1]).start()",
            0,
            "",
        ),
    ],
)
def test_it_exits_as_a_fresh_interpreter_does(code: str, returncode: int, stderr: str) -> None:
    """Exit codes are what schedulers and CI read."""
    done = run("-c", code)
    assert done.returncode == returncode
    assert stderr in done.stderr
    assert bool(stderr) is bool(done.stderr)


def test_a_module_runs_as_main(tmp_path: Path) -> None:
    """python -m looks in the working directory first."""
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert run("-m", "mine", "a", folder=tmp_path).stdout == "__main__ ['a']\n"


def test_a_program_that_runs_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    """A test that times out must not leave a job behind."""
    code = "import subprocess; subprocess.run(['sh', '-c', 'echo $$ > pid; sleep 60'])"
    with Program("-c", code, folder=tmp_path) as program:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.1)
        assert program.poll() is None
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert program.poll() == -signal.SIGKILL
    assert not Path(f"/proc/{child}").exists()


def touch(path: Path) -> None:
    path.write_text("prepared")


def test_prepare_runs_in_the_child_before_the_program(tmp_path: Path) -> None:
    """Faults are put in place there."""
    code = f"print(open({str(tmp_path / 'x')!r}).read())"
    with Program("-c", code, prepare=partial(touch, tmp_path / "x")) as program:
        assert program.wait(10) == 0
        assert program.stdout == "prepared\n"


def test_programs_do_not_outlive_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the tests must end the jobs they started."""
    program: Any = Program("-c", "import time; print('here', flush=True); time.sleep(60)")
    while program.stdout != "here\n":
        time.sleep(0.01)
    programs.shut_down()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{program.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{program.pid}").exists()
    assert run("-c", "print(1)").stdout == "1\n"  # a new server starts by itself

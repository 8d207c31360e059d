"""Runs a function on real ranks, and ends every process that comes of it.

The only module that starts processes. A server (``forkserver.py``) with torch loaded forks the
ranks, so a job of two takes a tenth of a second; started once per kernel, four seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rehearsal.engine.reports import Failure, Fault, RankReport
from rehearsal.engine.forkserver import SWEEP_S

MAX_WORLD_SIZE = 8
MAX_THREADS = 1500  # of all ranks and what they start: a fork bomb passes it
OUTPUT_SHOWN = 200  # lines per rank
LINE_SHOWN = 2000  # characters of a line
CHUNK = 2**20  # bytes of output read at a time
STOOD_STILL = "The ranks stood still while they met, before the work began."
SERVER_ENDED = "The process that starts the ranks has ended."
ONCE_MORE = "Once more."  # said after one of these


class ForkServer:
    """The process that forks ranks, and the conversation with it.

    Args:
        modules: by name; it imports them as well, so no rank has to.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.modules = modules
        ours, theirs = socket.socketpair()
        self.connection, self.buffer = ours, b""
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        }
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rehearsal.engine.forkserver",
                str(theirs.fileno()),
                *modules,
            ],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()
        self.is_ready = False

    def send(self, **request: object) -> None:
        """Ask for something. Raises ConnectionError if the server is dead."""
        try:
            self.connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._ended() from error

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """What has come within ``timeout_s``. Raises ConnectionError if the server is dead."""
        self.connection.settimeout(max(timeout_s, 1e-4))
        try:
            received = self.connection.recv(65536)
        except TimeoutError:
            return []
        except OSError as error:
            raise self._ended() from error
        if not received:
            raise self._ended()
        *lines, self.buffer = (self.buffer + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _ended(self) -> ConnectionError:
        self.log.seek(0)
        why = self.log.read().decode(errors="replace")[-2000:]
        return ConnectionError(f"{SERVER_ENDED} {why}".rstrip())

    def wait_for(self, key: str, timeout_s: float) -> list[dict[str, Any]]:
        """All messages up to one that has ``key``."""
        seen, deadline = [], time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            seen += self.messages(0.5)
            if any(key in message for message in seen):
                return seen
        raise ConnectionError(f"the server of the ranks gave no answer in {timeout_s:g} s")

    def wait_until_ready(self) -> None:
        """Wait for its imports: about four seconds, the first time."""
        if not self.is_ready:
            self.wait_for("ready", 120.0)
            self.is_ready = True

    def is_bombed(self) -> bool:
        """Whether the ranks have started more threads than a job may."""
        return _threads_below(self.process.pid) > MAX_THREADS

    def sweep(self) -> None:
        """Have every process of every job ended."""
        self.send(sweep=True)
        self.wait_for("swept", SWEEP_S + 5)

    def close(self) -> None:
        """End the server and, through it, whatever it still runs."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SWEEP_S + 5)
        self.process.kill()
        self.process.wait()
        self.log.close()


class Launcher:
    """Where processes cannot be forked: each rank is a new interpreter, three seconds a job."""

    def __init__(self) -> None:
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}

    def wait_until_ready(self) -> None:
        """Nothing is prepared."""

    def send(self, *, start: str, world_size: int) -> None:
        """Start the ranks of a job."""
        root = str(Path(__file__).resolve().parents[2])
        for rank in range(world_size):
            command = [sys.executable, "-m", "rehearsal.engine.rank", start, str(rank)]
            environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, env=environment, start_new_session=True)
            self.ranks[process.pid] = process

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the server would say: the process ids, and each end."""
        time.sleep(timeout_s)
        ended = {pid: process.poll() for pid, process in self.ranks.items()}
        return [{"pids": list(self.ranks)}] + [
            {"pid": pid, "status": code} for pid, code in ended.items() if code is not None
        ]

    def is_bombed(self) -> bool:
        """Whether they have started more threads than a job may, as far as can be told."""
        return True

    def sweep(self) -> None:
        """End the ranks and what is left in their process groups."""
        for pid, process in self.ranks.items():
            with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
                os.killpg(pid, signal.SIGKILL)
            process.kill()
            process.wait()
        self.ranks.clear()

    def close(self) -> None:
        """End whatever still runs."""
        self.sweep()


_server: ForkServer | Launcher | None = None
_turn = threading.RLock()  # one job at a time: two would share the clock of two cores


def warm_up(*modules: str) -> None:
    """Start the server, and import torch here while it does so there.

    A set-up cell calls it, so that the server is ready when the brief has been read.

    Args:
        modules: that the ranks will import. Not for attempts at drills: that one uses a module
            is told by its being there.
    """
    global _server
    # At both ends of a connection torch's store asks the DNS for the name of 127.0.0.1 (2.13,
    # for its log). Where the answer is lost, glibc asks again after one second now, not five.
    os.environ.setdefault("RES_OPTIONS", "timeout:1")
    with _turn:
        if isinstance(_server, ForkServer) and (
            _server.process.poll() is not None or not {*modules} <= {*_server.modules}
        ):
            shut_down()
        if _server is None and hasattr(os, "fork"):
            _server = ForkServer(modules)
        elif _server is None:
            print(
                "No fork on this system: each check starts new interpreters and takes seconds."
            )
            _server = Launcher()
    import torch.distributed  # noqa: F401 - the ranks of a check meet in a store of this process


@atexit.register
def shut_down() -> None:
    """End the server. The next job starts another."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    world_size: int,
    deadline_s: float = 10.0,
    folder: Path | None = None,
    fault: Fault | None = None,
    lines: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
) -> list[RankReport]:
    """Run ``function(context, *arguments)`` on ``world_size`` ranks; report what each did.

    Whatever the function does, this returns, and leaves no process behind: half a second after
    the deadline, which counts from the start, or from where all ranks have met in
    ``context.init_group``. Where they still stood in it, or the server has died, the job is run
    once more, unless it has a folder: what its first try left there would be evidence.

    Args:
        function: travels by cloudpickle, so it may be typed in a notebook.
        folder: for the context; a temporary one if None.
        lines: source text by file name, for tracebacks.
        echo: called with each line of output as it comes, prefixed with its rank; and with
            why the job is run once more.

    Raises:
        ValueError: a world size out of bounds.
        RuntimeError: the server cannot be started.
        ConnectionError: it has died, and there is no other try.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise ValueError(
            f"world_size={world_size}: 1 to {MAX_WORLD_SIZE} ranks share this machine's cores; "
            "more would only wait for each other. Choose a number in between."
        )
    try:
        from cloudpickle import dumps
    except ImportError:  # enough for what a module defines; grading says what it means
        from pickle import dumps
    payload = dumps((function, arguments, dict(lines or {})))
    with _turn:
        for is_last_try in (False, True) if folder is None else (True,):
            server = _ready_server()
            with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
                job = Path(name)
                (job / "payload.pkl").write_bytes(payload)
                work = folder or job / "work"
                work.mkdir(exist_ok=True)
                try:
                    reports = _run(server, job, work, world_size, deadline_s, fault, echo)
                    if is_last_try or not stand_at_the_meeting(reports):
                        return reports
                    why = STOOD_STILL
                except ConnectionError:
                    # Somebody has ended the server, maybe the system for want of memory.
                    shut_down()
                    if is_last_try:
                        raise
                    why = SERVER_ENDED
                if echo:
                    echo(f"{why} {ONCE_MORE}")
    raise AssertionError("unreachable")


def stand_at_the_meeting(reports: Sequence[RankReport]) -> bool:
    """Whether all ranks came to ``init_group``, none has ended, and not all got through it.

    Torch asks the DNS for the name of 127.0.0.1 while it connects, and waits for an answer that
    may not come. A rank that stands there has not reached what the job is about, so the
    deadline says nothing about that.
    """
    return all(r.exitcode is None and r.of("joining") for r in reports) and not all(
        r.of("joined") for r in reports
    )


def _ready_server() -> ForkServer | Launcher:
    """The server, with its imports done. RuntimeError if it cannot be started, tried twice."""
    for _ in range(2):
        warm_up()
        assert _server is not None
        try:
            _server.wait_until_ready()
            return _server
        except ConnectionError as error:
            shut_down()
            why = error
    raise RuntimeError(
        f"The process that starts ranks cannot be started: {why} Nothing can run on ranks "
        "until it can. Look whether the machine has memory and processes left, and whether "
        "this kernel's environment has the installed torch."
    )


def _run(
    server: ForkServer | Launcher,
    job: Path,
    work: Path,
    world_size: int,
    deadline_s: float,
    fault: Fault | None,
    echo: Callable[[str], None] | None,
) -> list[RankReport]:
    from torch.distributed import TCPStore  # not at the top: a hint needs no torch

    # This process plays torchrun's agent: it keeps the store in which the ranks meet.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launcher = {
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCH_FR_BUFFER_SIZE": 4096,
        "OMP_NUM_THREADS": 1,
    }
    spec = {
        "world_size": world_size,
        "deadline_s": deadline_s,
        "folder": str(work.resolve()),
        "fault": asdict(fault) if fault else None,
        "env": {**os.environ, **{name: str(value) for name, value in launcher.items()}},
        "path": [entry or os.getcwd() for entry in sys.path],
        "cwd": str(job),
    }
    (job / "spec.json").write_text(json.dumps(spec))
    tails = [_Tail(job / f"output-{rank}", rank, echo) for rank in range(world_size)]
    exitcodes: dict[int, int] = {}
    threads = _threads_of_the_machine()
    server.send(start=str(job), world_size=world_size)
    deadline = time.monotonic() + deadline_s + 0.2
    have_met = False
    pids: list[int] = []
    try:
        while len(exitcodes) < world_size:
            if not have_met and all((job / f"joined-{r}").exists() for r in range(world_size)):
                have_met, deadline = True, time.monotonic() + deadline_s + 0.2
            if time.monotonic() >= deadline:
                break
            for message in server.messages(min(0.05, deadline - time.monotonic())):
                pids = message.get("pids", pids)
                if "pid" in message:
                    exitcodes[message["pid"]] = message["status"]
            for tail in tails:
                tail.show()
            # The machine's number costs nothing; whose threads they are is asked only then.
            if _threads_of_the_machine() > threads + MAX_THREADS and server.is_bombed():
                break
    finally:
        # Also when the kernel was interrupted: nothing is left running.
        try:
            server.sweep()
        except BaseException:  # interrupted again, or the server is dead
            shut_down()
            raise
    for tail in tails:
        tail.show(last=True)
    return [
        _report(job, rank, exitcodes.get(pids[rank]) if pids else None, tails[rank].text)
        for rank in range(world_size)
    ]


def _threads_of_the_machine() -> int:
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0  # no Linux: the process limit is the only bound


def _threads_below(ancestor: int) -> int:
    """Threads of all descendants of a process. Linux: it reads /proc."""
    parents, threads = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which is in parentheses and may hold anything: man 5 proc.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], threads[pid] = int(fields[1]), int(fields[17])
    below = {ancestor}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    return sum(threads.get(pid, 0) for pid in below - {ancestor})


class _Tail:
    """A rank's output: shown while it comes, kept in part."""

    def __init__(self, path: Path, rank: int, echo: Callable[[str], None] | None) -> None:
        self.path, self.rank, self.echo = path, rank, echo
        self.at, self.shown, self.text = 0, 0, ""

    def show(self, last: bool = False) -> None:
        """Hand on the whole lines that have come; at the end also what is no whole line."""
        if not self.path.exists() or self.path.stat().st_size == self.at:
            return
        with self.path.open("rb") as file:
            file.seek(self.at)
            new = file.read(CHUNK)
        # A line that fills all of it has no end worth waiting for.
        is_endless = len(new) == CHUNK and b"\n" not in new
        whole = len(new) if last or is_endless else new.rfind(b"\n") + 1
        self.at += whole
        for line in new[:whole].decode(errors="replace").splitlines():
            self.shown += 1
            if len(line) > LINE_SHOWN:
                line = f"{line[:LINE_SHOWN]} ... ({len(line)} characters)"
            if self.shown <= OUTPUT_SHOWN:
                self.text += line + "\n"
                if self.echo:
                    self.echo(f"[{self.rank}] {line}")
            elif self.shown == OUTPUT_SHOWN + 1 and self.echo:
                self.echo(
                    f"[{self.rank}] (more than {OUTPUT_SHOWN} lines; the rest is not shown)"
                )


def _report(job: Path, rank: int, exitcode: int | None, output: str) -> RankReport:
    answer: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):
        answer = json.loads((job / f"answer-{rank}.json").read_text())
    events, stacks = job / f"events-{rank}.jsonl", job / f"stacks-{rank}"
    recorded = []
    for line in events.read_text().splitlines() if events.exists() else ():
        with contextlib.suppress(ValueError):  # cut by a kill
            recorded.append(json.loads(line))
    failure = answer.get("failure")
    return RankReport(
        rank=rank,
        exitcode=exitcode,
        answer=answer.get("answer"),
        has_answer="answer" in answer,
        failure=Failure(**failure) if failure else None,
        blank=answer.get("blank", ()),
        mismatch=[(name, what) for name, what in answer.get("mismatch", ())],
        stacks=_own_frames(stacks.read_text()) if exitcode is None and stacks.exists() else "",
        output=output,
        events=recorded,
    )


def _own_frames(dump: str) -> str:
    """Of faulthandler's dump: the main thread, without what is below the learner's code."""
    *_, thread = dump.split("most recent call first):\n")
    frames = [line.strip() for line in thread.splitlines() if line.startswith("  File")]
    below = next((i for i, f in enumerate(frames) if "/rehearsal/" in f), len(frames))
    return "\n".join(frames[:below])

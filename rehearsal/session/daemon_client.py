"""Checks at a terminal go to a process that keeps running between commands (``daemon.py``).

One per user, checkout and interpreter. It is replaced when the project's code has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rehearsal.engine.server import CannotStartRanks
from rehearsal.grading import check
from rehearsal.grading.drill import load
from rehearsal.grading.verdict import Finding, Verdict

ROOT = Path(__file__).resolve().parents[2]
IDLE_S = 600.0  # ten minutes without a check
STOP_S = 30.0  # killing a fork bomb's processes takes ten seconds
LONGEST = 100  # bytes of a socket's address: 104 on macOS, 108 on Linux
ENDED = "The background process that keeps torch loaded has ended."
WITHOUT = "This check runs without a background process."

Echo = Callable[[str], None]


class Unavailable(Exception):
    """No such process can be used here; the check runs in this one instead."""


class Daemon:
    """A connection to the process, and what arrives on it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.buffer = connection, b""

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError if the other side is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message. Raises ConnectionError if there is none, or TimeoutError."""
        self.connection.settimeout(timeout_s)
        while b"\n" not in self.buffer:
            received = self.connection.recv(65536)
            if not received:
                raise ConnectionError(ENDED)
            self.buffer += received
        line, _, self.buffer = self.buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def is_wanted() -> bool:
    """Whether checks at a terminal use one: unless REHEARSAL_NO_SERVER forbids it."""
    return not os.environ.get("REHEARSAL_NO_SERVER")


def grade_source(
    drill: str, source: str, *, file: str, echo: Echo, seed: int | None
) -> Verdict:
    """The verdict of ``rehearsal.grade_source``, from the background process.

    Where there can be none, or it ends meanwhile, this process judges the text itself.

    Raises:
        KeyboardInterrupt: once the ranks have been stopped.
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server of the ranks cannot be started.
    """
    seed = check.drawn_seed(seed)
    if verdict := check.verdict_without_ranks(load(drill), source, file):
        return verdict
    try:
        with contextlib.closing(connected(echo).connection) as connection:
            return _ask(Daemon(connection), drill, source, file, echo, seed)
    except (OSError, Unavailable) as error:
        # With a number, it is the operating system's message, which doesn't say what failed.
        is_ours = getattr(error, "errno", None) is None
        why = error if is_ours else f"The background process can't be used ({error})."
        echo(f"{why} {WITHOUT}")
        return check.grade_source(drill, source, file=file, echo=echo, seed=seed)


def _ask(
    daemon: Daemon, drill: str, source: str, file: str, echo: Echo, seed: int | None
) -> Verdict:
    try:
        daemon.send(
            drill=drill,
            source=source,
            file=file,
            seed=seed,
            environment=dict(os.environ),
            path=[entry or os.getcwd() for entry in sys.path],
            folder=os.getcwd(),
        )
        while True:
            message = daemon.receive()
            if "line" in message:
                echo(message["line"])
            elif "verdict" in message:
                plain = message["verdict"]
                findings = [Finding(*finding) for finding in plain["findings"]]
                return Verdict(**{**plain, "findings": findings})
            elif "error" in message:
                raise CannotStartRanks(message["error"])
            else:
                raise ConnectionError(ENDED)
    except KeyboardInterrupt:
        # When this returns, no rank is left; a second Ctrl-C does not wait for that.
        with contextlib.suppress(OSError):
            daemon.send(stop=True)
            while "stopped" not in daemon.receive(STOP_S):
                pass
        raise


def warm_up() -> None:
    """Start the process, if there is none, without waiting for it."""
    with contextlib.suppress(OSError, Unavailable), _locked():
        if connection := _connect():
            connection.close()
        else:
            _start()


def connected(echo: Echo) -> Daemon:
    """A connection whose greeting has come; starts the process, or replaces an outdated one.

    Raises:
        Unavailable: if it cannot be started.
    """
    digest = digest_of_code()
    if daemon := _greeted(digest, echo):
        return daemon
    with _locked():
        if daemon := _greeted(digest, echo):  # another command was faster
            return daemon
        _start()
        if daemon := _greeted(digest, None):
            return daemon
        why = address().with_suffix(".log").read_text(errors="replace")[-500:].strip()
        raise Unavailable(f"{ENDED} {why}".rstrip())


def _greeted(digest: str, echo: Echo | None) -> Daemon | None:
    """A connection to a process of today's code; an outdated one is ended."""
    connection = _connect()
    if connection is None:
        return None
    daemon = Daemon(connection)
    try:
        try:
            greeting = daemon.receive(1.0)
        except TimeoutError:
            if echo:
                echo("Another check is running or starting; this one runs next.")
            greeting = daemon.receive()
        if greeting.get("digest") == digest:
            return daemon
        daemon.send(end=True)
        with contextlib.suppress(OSError):
            daemon.receive(STOP_S)  # until it has closed the connection
    except OSError:
        pass
    connection.close()
    return None


def _connect() -> socket.socket | None:
    path = str(address())
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        return connection
    except OSError:
        connection.close()
        return None


def _start() -> None:
    """Start the process; it listens when this returns, and loads torch.

    In a session of its own: a terminal's Ctrl-C does not reach it.
    """
    path = address()
    path.unlink(missing_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with path.with_suffix(".log").open("wb") as log:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "rehearsal.session.daemon",
                str(path),
                digest_of_code(),
                str(IDLE_S),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,  # if it has failed, nobody listens, and its log says why
        )


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Only one command at a time starts the process."""
    with address().with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def address() -> Path:
    """The socket's path: one for each user, checkout and interpreter.

    Raises:
        Unavailable: if no folder is private enough, or the path would be too long.
    """
    folder = private_folder()
    which = "\n".join([str(ROOT), sys.executable, sys.version])
    path = folder / f"{hashlib.sha256(which.encode()).hexdigest()[:12]}.socket"
    if len(os.fsencode(path)) > LONGEST:
        raise Unavailable(f"{path} is too long for a socket.")
    return path


def private_folder() -> Path:
    """A folder that nobody else can enter.

    Raises:
        Unavailable: if it belongs to somebody else, or others can enter it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # After su, it is another user's; once that login has ended, it is gone.
    if not os.access(base, os.W_OK | os.X_OK):
        base = tempfile.gettempdir()
    folder = Path(base) / f"rehearsal-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not is_private or found.st_uid != os.getuid():
        raise Unavailable(
            f"Other users can enter {folder}, so they could read and answer your checks."
        )
    return folder


def digest_of_code() -> str:
    """Changes with any file of this project's code, and with the installed torch."""
    torch = importlib.util.find_spec("torch")
    paths = [Path(torch.origin)] if torch and torch.origin else []
    for package in ("rehearsal", "trainer_core"):
        paths += [p for p in (ROOT / package).rglob("*") if p.suffix in (".py", ".toml")]
    lines = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):  # an editor replaces it just now
            found = path.stat()
            lines.append(f"{path} {found.st_mtime_ns} {found.st_size}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

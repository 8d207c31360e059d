"""A process that keeps running between commands, so a second check needn't load torch again.

Run by ``daemon_client.py`` as ``python -m rehearsal.session.daemon SOCKET DIGEST IDLE_S``. It
owns the server that forks the ranks, judges one text at a time, and ends after IDLE_S seconds
without a request. Messages are JSON objects, one per line:

    -> {"digest": ...}                      when it turns to a connection
    <- {"drill": ..., "source": ..., ...}   what to judge, and the caller's environment
    -> {"line": ...}                        what a rank printed
    -> {"verdict": {...}}, {"stopped": true} or {"error": ...}

Anything more from the caller, or the end of the connection, stops the job: its Ctrl-C, or its
death. {"end": true} instead of a request ends this process.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rehearsal.engine.ranks import shut_down
from rehearsal.engine.server import CannotStartRanks
from rehearsal.grading.check import grade_source, warm_up

PATIENCE_S = 30.0  # for a request to arrive, and for a caller to take what a rank printed
LOOK_S = 5.0  # how often it looks whether its address is still its own


class Conversation:
    """One connection, from greeting to verdict."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self.connection = connection
        self.is_judging = False
        self.lock = threading.Lock()
        self.watcher = threading.Thread(target=self._watch, name="rehearsal-caller")

    def say(self, **message: Any) -> None:
        """Send a message. Raises OSError if the caller is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def request(self) -> dict[str, Any] | None:
        """The request; None if the caller is gone."""
        received = b""
        while not received.endswith(b"\n"):
            more = self.connection.recv(2**20)
            if not more:
                return None
            received += more
        found: dict[str, Any] = json.loads(received)
        return found

    def judge(self, request: dict[str, Any]) -> None:
        """Judge a text, unless the caller goes away or says stop."""
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["path"]
        tempfile.tempdir = None  # TMPDIR may differ from the last caller's
        os.chdir(request["folder"])
        answer: dict[str, Any] = {"stopped": True}
        try:
            self.is_judging = True
            self.watcher.start()
            verdict = grade_source(
                request["drill"],
                request["source"],
                file=request["file"],
                echo=lambda line: self.say(line=line),
                seed=request["seed"],
            )
            with self.lock:  # from here on, nobody interrupts
                self.is_judging = False
            answer = {"verdict": dataclasses.asdict(verdict)}
        except KeyboardInterrupt:
            pass  # the ranks have been stopped
        except CannotStartRanks as error:
            answer = {"error": str(error)}
        finally:
            self.is_judging = False
            os.chdir("/")  # a folder in use cannot be unmounted
        self.say(**answer)

    def close(self) -> None:
        """End the connection, and the thread that reads from it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        if self.watcher.is_alive():
            self.watcher.join()
        self.connection.close()

    def _watch(self) -> None:
        """Interrupt the main thread when the caller says stop, or is gone."""
        while True:
            try:
                self.connection.recv(1)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        with self.lock:
            if self.is_judging:
                _thread.interrupt_main()


def serve(listener: socket.socket, address: Path, digest: str, idle_s: float) -> None:
    """Serve one caller after the other, until none has come for ``idle_s`` or one ends it."""
    own = address.stat().st_ino
    listener.settimeout(LOOK_S)
    last = time.monotonic()
    while time.monotonic() - last < idle_s:
        # A client may have replaced this process, or someone may have cleaned up.
        if not address.exists() or address.stat().st_ino != own:
            return
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        conversation = Conversation(connection)
        try:
            conversation.say(digest=digest)
            request = conversation.request()
            if request is not None and "end" in request:
                return
            if request is not None:
                conversation.judge(request)
        except (OSError, ValueError, KeyboardInterrupt) as error:
            print(f"a caller is gone: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            conversation.close()
        last = time.monotonic()


def main(address: Path, digest: str, idle_s: float) -> None:
    """Listen at ``address``, then load torch: callers wait in the queue meanwhile."""
    # A shell starts background jobs with SIGINT ignored; here it is how a job is stopped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o077)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        own = address.stat().st_ino
        # The caller waits for its child, which ends here: nobody has to wait for the daemon.
        if os.fork():
            os._exit(0)
        try:
            warm_up()
            serve(listener, address, digest, idle_s)
        finally:
            if address.exists() and address.stat().st_ino == own:
                address.unlink()
            shut_down()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))

"""What does a kill leave behind, at each change of a file? Runs in the ranks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rehearsal.engine.rank import CHANGES, WRITES


DOING = {
    "os.rename": "renaming",
    "os.remove": "removing",
    "os.mkdir": "creating",
    "os.rmdir": "removing",
    "os.truncate": "truncating",
    "os.link": "linking",
}


def die_at_each_file_operation(
    prepare: Callable[[int], Path], act: Callable[[Path], None], at_most: int = 40
) -> Iterator[tuple[Path, str]]:
    """Run ``act`` in copies of this process; the n-th dies before its n-th file operation.

    Yields the folder that each leaves behind, and where it died. The last one lives.

    Args:
        prepare: makes the folder for the n-th copy.
    """
    for number in range(1, at_most):
        folder = prepare(number)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                _die_before_change(number, writer)
                act(folder)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with os.fdopen(reader) as lines:
            where = lines.read()
        yield folder, where if status == -signal.SIGKILL else ""
        if status != -signal.SIGKILL:
            return


def _die_before_change(number: int, writer: int) -> None:
    changes = 0

    def count(what: str, path: object) -> None:
        nonlocal changes
        changes += 1
        if changes == number:
            os.write(writer, f"{what} {os.path.basename(os.fsdecode(str(path)))}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            count("opening", arguments[0])
        elif event in CHANGES:
            count(DOING[event], arguments[0])

    def counted(fd: Any) -> None:  # a kill loses nothing from the page cache
        number = fd if isinstance(fd, int) else fd.fileno()
        count("the fsync of", os.readlink(f"/proc/self/fd/{number}"))

    os.fsync = counted
    sys.addaudithook(audit)

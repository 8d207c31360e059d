"""torchrun for a notebook: the real launcher, whose ranks call a function of the notebook.

    with Torchrun(train, folder, ranks=2, flags=["--max-restarts=1"]) as job:
        os.kill(job.ranks()[1], signal.SIGKILL)
        print(job.wait(), job.answers())

What runs is torchrun's own code. One thing differs from a shell: torchrun and its ranks are
forked from a process that has imported torch, which saves seconds per start. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rehearsal.engine.processes import children_of
from rehearsal.engine.programs import Program, start_server
from rehearsal.faults.torchrun import fork_the_ranks

RANK_MODULE = "rehearsal.handbook.torchrun_rank"


def warm_up() -> None:
    """Start importing torch in the background, so that the first job needn't wait for it."""
    if sys.platform == "linux":
        start_server()


class Torchrun:
    """torchrun and its ranks on this machine. As a context, it leaves no process behind.

    Args:
        function: called on each rank; may be defined in a notebook, and travels by value. It
            returns what JSON can hold.
        arguments: equal on all ranks.
        ranks: torchrun's --nproc-per-node.
        flags: further flags of torchrun, such as "--max-restarts=1".
        environment: added to this process's.

    Raises:
        RuntimeError: anywhere but on Linux.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: int = 2,
        flags: Sequence[str] = ("--standalone",),
        environment: dict[str, str] | None = None,
    ) -> None:
        from cloudpickle import dumps

        if sys.platform != "linux":
            raise RuntimeError(
                "this cell starts torchrun by forking, which needs Linux. Open the notebook on "
                "Colab, in WSL or in a container, and run it there."
            )
        self.folder = Path(tempfile.mkdtemp(prefix="torchrun-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "call.pkl").write_bytes(dumps((function, arguments)))
        self.flags = [f"--nproc-per-node={ranks}", *flags]
        self.agent = Program(
            *("-m", "torch.distributed.run", *self.flags, "--monitor-interval=0.05"),
            *("-m", RANK_MODULE, str(self.folder)),
            environment={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self.folder),  # torchrun leaves a folder behind
                **(environment or {}),
            },
            output=self.folder,
            prepare=fork_the_ranks,
        )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        ranks = children_of(self.agent.pid)
        self.agent.close()
        for pid in ranks:  # each leads a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def command(self) -> str:
        """What you would type in a shell, with your own script."""
        return " ".join(["torchrun", *self.flags, "train.py"])

    def wait(self, timeout_s: float = 120.0) -> int:
        """torchrun's exit code. Raises subprocess.TimeoutExpired if it still runs by then."""
        return self.agent.wait(timeout_s)

    def ranks(self) -> list[int]:
        """The process ids of torchrun's living ranks, in rank order."""
        found = {}
        for pid in children_of(self.agent.pid):
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith("RANK="):  # so named by rehearsal.faults.torchrun
                    found[int(name[5:])] = pid
        return [found[rank] for rank in sorted(found)]

    def until(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
        """Wait until the condition is true; False if torchrun exits, or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.agent.poll() is not None or time.monotonic() > deadline:
                return condition()
            time.sleep(0.005)
        return True

    def answers(self) -> list[Any]:
        """What the function returned in the last attempt, by rank; None if it didn't."""
        paths = {int(path.stem[7:]): path for path in self.folder.glob("answer-*.json")}
        return [json.loads(paths[rank].read_text()) for rank in sorted(paths)]

    def errors(self) -> dict[tuple[int, int], str]:
        """What ended a rank, by attempt and rank, from 0: the type and the message."""
        found = {}
        for path in sorted(self.folder.glob("error-*")):
            _, attempt, rank = path.name.split("-")
            found[int(attempt), int(rank)] = path.read_text()
        return found

    @property
    def stdout(self) -> str:
        """What torchrun and its ranks have printed."""
        return self.agent.stdout

    @property
    def stderr(self) -> str:
        """What torchrun and its ranks have printed to stderr."""
        return self.agent.stderr


def without_paths(text: str) -> str:
    """An error's text without the path of gloo's source on the machine that built it."""
    return re.sub(r"\[/\S+\] ", "", text)


def free_endpoint() -> str:
    """An address on this machine where a rendezvous store can listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def on_nodes(
    function: Callable[..., Any], *arguments: Any, nodes: int, ranks: int
) -> list[Any]:
    """What a function returns on each rank of a job on several nodes, played by this machine.

    One torchrun per node, as a cluster would start it; they meet at the first one's store.

    Raises:
        RuntimeError: if a torchrun fails; the message has its last lines.
    """
    flags = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}"]
    with contextlib.ExitStack() as closing:
        jobs = [
            closing.enter_context(Torchrun(function, *arguments, ranks=ranks, flags=flags))
            for _ in range(nodes)
        ]
        for job in jobs:
            if code := job.wait():
                raise RuntimeError(f"torchrun ended with {code}:\n{job.stderr[-1000:]}")
        return [answer for job in jobs for answer in job.answers()]

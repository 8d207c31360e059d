"""Gloo ranks from a notebook: the same job as under torchrun, in processes of this machine.

Leaned on by cell 8 (launch). Functions and classes defined in the notebook travel by value, so
nothing has to be installed or saved to a file.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.distributed as dist

# %% active="py"
from trainer_core.settings import UserError


# %%
class ByValue:
    """A callable that pickles by value, also if it is defined in a notebook."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self.function),)


def worker_main(
    job: Callable[[], Any], environment: dict[str, str], results: Connection
) -> None:
    """The life of one rank: torchrun's environment, the job, one answer."""
    os.environ.update(environment)
    code = 0
    try:
        results.send((job(), None))
    except Exception as error:
        results.send((None, "".join(traceback.format_exception(error))))
        code = 2 if isinstance(error, UserError) else 1
    os._exit(code)


@dataclass(slots=True)
class WorkerResult:
    """How a rank ended: its return value, or a traceback; -9 is the code of a SIGKILL."""

    value: Any
    traceback: str | None
    exitcode: int | None


class Workers:
    """Running ranks. End them with ``wait`` or ``kill``.

    Args:
        job: called without arguments on each rank; what it returns must pickle.
        world_size: number of ranks.
    """

    def __init__(self, job: Callable[[], Any], world_size: int) -> None:
        # Not fork: a forked child of a process that has computed can hang in its first matmul.
        context = multiprocessing.get_context("forkserver")
        # Imported once in the server, not once per rank; dynamo by the first optimizer.
        context.set_forkserver_preload(["torch", "torch._dynamo", "trainer_core.launch"])
        # This process plays torchrun's agent: it keeps the store in which the ranks meet.
        self.store = dist.TCPStore(
            "127.0.0.1",
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=60),
        )
        self.processes, self.pipes = [], []
        for rank in range(world_size):
            environment = {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size,
                "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": self.store.port, "TORCHELASTIC_USE_AGENT_STORE": True,
                "OMP_NUM_THREADS": 1,
            }  # fmt: skip
            texts = {name: str(value) for name, value in environment.items()}
            receiver, sender = context.Pipe(duplex=False)
            target = ByValue(partial(worker_main, job, texts))
            process = context.Process(target=target, args=(sender,), daemon=False)
            process.start()
            sender.close()
            self.processes.append(process)
            self.pipes.append(receiver)

    def kill(self, rank: int) -> None:
        """SIGKILL one rank: no handler runs, nothing is flushed."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float = 300.0) -> list[WorkerResult]:
        """Wait for all ranks; kill the rest five seconds after one has failed.

        Raises:
            TimeoutError: if ranks are still running after ``timeout_s``; they are killed.
        """
        deadline, failed = time.monotonic() + timeout_s, False
        try:
            while running := [p for p in self.processes if p.exitcode is None]:
                left = deadline - time.monotonic()
                if left <= 0:
                    if failed:
                        break
                    raise TimeoutError(f"{len(running)} rank(s) still run after {timeout_s} s")
                wait([p.sentinel for p in running], timeout=left)
                if not failed and any(p.exitcode not in (0, None) for p in self.processes):
                    failed, deadline = True, min(deadline, time.monotonic() + 5)
        finally:
            for process in self.processes:
                process.kill()
                process.join()
        return [self._result(rank) for rank in range(len(self.processes))]

    def _result(self, rank: int) -> WorkerResult:
        exitcode = self.processes[rank].exitcode
        try:
            value, text = self.pipes[rank].recv()
        except EOFError:
            return WorkerResult(None, None, exitcode)
        return WorkerResult(value, text, exitcode)

"""Gloo ranks from a notebook: the same job as under torchrun, in processes of this machine.

Leaned on by cell 8 (launch). Functions and classes defined in the notebook travel by value, so
nothing has to be installed or saved to a file.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore

# %% active="py"
from trainer_core.settings import UserError


# %%
class ByValue(partial[Any]):
    """A partial that pickles by value, also if its function is defined in a notebook."""

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(partial(self.func, *self.args)),)


class RankResult(NamedTuple):
    """How a rank ended: its value, or its traceback, or neither (-9 is a SIGKILL's code)."""

    exitcode: int | None
    value: Any = None
    traceback: str = ""


def rank_main(job: Callable[[], Any], environment: dict[str, str], result: Path) -> None:
    """The life of one rank: torchrun's environment, the job, one answer."""
    os.environ.update(environment)
    # The server has imported torch, which read OMP_NUM_THREADS then.
    torch.set_num_threads(1)
    if __name__ == "__main__":
        # Typed in a notebook: loader workers send batches by pickle, which looks for the
        # notebook's classes in this process's own __main__.
        vars(sys.modules["__main__"]).update(globals())
    try:
        code, answer = 0, pickle.dumps((job(), ""))
    except Exception as error:
        code = 2 if isinstance(error, UserError) else 1
        answer = pickle.dumps((None, "".join(traceback.format_exception(error))))
    # By a rename, so that a kill leaves the whole answer or none.
    result.with_suffix(".tmp").write_bytes(answer)
    result.with_suffix(".tmp").rename(result)
    os._exit(code)


class LocalRanks:
    """Ranks that run ``job``, a callable without arguments; end them with ``wait``."""

    def __init__(self, job: Callable[[], Any], world_size: int) -> None:
        # Not fork: a forked child of a process that has computed can hang in its first matmul.
        context = multiprocessing.get_context("forkserver")
        # Imported once in the server, not once per rank; dynamo by the first optimizer.
        context.set_forkserver_preload(["torch", "torch._dynamo", "trainer_core.launch"])
        # This process plays torchrun's agent: it keeps the store in which the ranks meet.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.results = Path(tempfile.mkdtemp(prefix="workers-"))
        self.processes = []
        shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
        shared["MASTER_PORT"] = str(self.store.port)
        shared["WORLD_SIZE"] = shared["LOCAL_WORLD_SIZE"] = str(world_size)
        for rank in range(world_size):
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            main = ByValue(rank_main, job, environment, self.results / str(rank))
            self.processes.append(context.Process(target=main))
            self.processes[-1].start()

    def kill(self, rank: int) -> None:
        """SIGKILL one rank: no handler runs, nothing is flushed."""
        self.processes[rank].kill()

    def wait(self, timeout_s: float = 300.0) -> list[RankResult]:
        """Wait for all ranks. When one dies, gloo's closed connections end the others.

        Raises:
            TimeoutError: if ranks still run after ``timeout_s``; they are killed.
        """
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [process for process in self.processes if process.exitcode is None]
        for process in late:
            process.kill()
            process.join()
        files = [self.results / str(rank) for rank in range(len(self.processes))]
        answers = [pickle.loads(f.read_bytes()) if f.exists() else () for f in files]
        shutil.rmtree(self.results)
        if late:
            raise TimeoutError(f"{len(late)} rank(s) still ran after {timeout_s} s; killed")
        return [
            RankResult(p.exitcode, *a) for p, a in zip(self.processes, answers, strict=True)
        ]

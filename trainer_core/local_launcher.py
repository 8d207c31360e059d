"""A local stand-in for torchrun, for notebooks and tests: ranks as processes of this machine.

Supports cell 8 (launch). Functions and classes defined in a notebook are sent by value, so
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
    """A partial that pickles by value, even if its function is defined in a notebook."""

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(partial(self.func, *self.args)),)


class RankResult(NamedTuple):
    """How a rank ended: with a value, a traceback, or neither (exit code -9 means SIGKILL)."""

    exitcode: int | None
    value: Any = None
    traceback: str = ""


def rank_main(job: Callable[[], Any], environment: dict[str, str], result: Path) -> None:
    """What one rank does: take torchrun's environment, run the job, write the result."""
    os.environ.update(environment)
    # Torch read OMP_NUM_THREADS when the fork server imported it, so setting that is too late.
    torch.set_num_threads(1)
    if __name__ == "__main__":
        # Defined in a notebook: loader workers pickle batches, and unpickling looks for the
        # notebook's classes in this process's __main__.
        vars(sys.modules["__main__"]).update(globals())
    try:
        code, answer = 0, pickle.dumps((job(), ""))
    except Exception as error:
        code = 2 if isinstance(error, UserError) else 1
        answer = pickle.dumps((None, "".join(traceback.format_exception(error))))
    # Written by a rename, so a kill leaves a complete result or none.
    result.with_suffix(".tmp").write_bytes(answer)
    result.with_suffix(".tmp").rename(result)
    os._exit(code)


class LocalRanks:
    """Starts ``job``, called without arguments, on ``world_size`` ranks; ``wait`` for them."""

    def __init__(self, job: Callable[[], Any], world_size: int) -> None:
        # Not fork: once the parent has used torch's threads, a child can hang in a matmul.
        context = multiprocessing.get_context("forkserver")
        # Imported once, in the server. The first optimizer a rank builds would import dynamo.
        context.set_forkserver_preload(["torch", "torch._dynamo", "trainer_core.launch"])
        # Like torchrun's agent, this process hosts the store through which the ranks meet.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.results = Path(tempfile.mkdtemp(prefix="local-ranks-"))
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
        """Wait for all ranks. If one dies, gloo's broken connections end the others.

        Raises:
            TimeoutError: if ranks are still running after ``timeout_s``; they are killed.
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
            raise TimeoutError(f"{len(late)} rank(s) still running after {timeout_s} s; killed")
        pairs = zip(self.processes, answers, strict=True)
        return [RankResult(process.exitcode, *answer) for process, answer in pairs]

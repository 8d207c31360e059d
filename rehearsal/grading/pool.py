"""Processes that judge in parallel, each with servers of its own for the ranks."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    """A pool of this many processes. They end with the caller, even if it is killed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the servers, too: more threads only disturb
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_the_caller)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_the_caller() -> None:
    """In a process of the pool: end as soon as the caller does, with the servers for ranks.

    A pool's processes share both ends of the pipe that they get work from, so they would wait
    for more work forever.
    """
    caller = multiprocessing.parent_process()
    assert caller is not None, "only a child process can end with its parent"

    def wait() -> None:
        caller.join()
        os._exit(1)  # which closes the connections to the servers, and that ends these

    threading.Thread(target=wait, daemon=True).start()

"""What a rank does on SIGTERM, and what its loader workers do when the rank dies.

Supports cell 2 (data) and cell 8 (launch).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


# %%
@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event that the training loop checks between two steps."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can install signal handlers
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)


# %%
def exit_with_parent(_worker_id: int) -> None:
    """Make this loader worker exit when its rank dies or terminates it, not before. Linux only.

    A worker inherits its rank's sockets. If it outlived the rank, peers would see an open
    connection to a dead rank and keep waiting, so the operating system kills it too. It ignores
    a SIGTERM sent to the whole job: the rank still needs its batches for the step it saves. A
    SIGTERM from the rank itself counts: Python sends one at exit and waits for the worker.
    """
    if sys.platform != "linux":
        return
    parent = multiprocessing.parent_process()
    rank_pid = parent.pid if parent else os.getppid()
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != rank_pid:  # the rank died before the line above
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def exit_when_rank_asks() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank_pid:
            pass
        os._exit(0)

    threading.Thread(target=exit_when_rank_asks, daemon=True).start()

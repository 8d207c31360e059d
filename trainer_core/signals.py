"""What a rank does on SIGTERM and Ctrl-C, and what its loader workers do when the rank dies.

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
from types import FrameType
from typing import Any


# %%
@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Turn SIGTERM, or a first Ctrl-C, into an event that the training loop checks each step.

    A second Ctrl-C does what it would do outside a run: it ends launch.py at once, and raises
    KeyboardInterrupt in a notebook.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can install signal handlers
        return
    previous: dict[int, Any] = {}
    received: set[int] = set()

    def stop_soon(number: int, frame: FrameType | None) -> None:
        stop.set()
        if number == signal.SIGINT and number in received and callable(previous[number]):
            previous[number](number, frame)
        received.add(number)

    for signal_ in (signal.SIGTERM, signal.SIGINT):
        previous[signal_] = signal.getsignal(signal_)
        signal.signal(signal_, stop_soon)
    try:
        yield stop
    finally:
        for signal_number, handler in previous.items():
            signal.signal(signal_number, handler)


# %%
def exit_with_parent(_worker_id: int) -> None:
    """Make this loader worker exit when its rank dies or terminates it, not before. Linux only.

    A worker inherits its rank's sockets. If it outlived the rank, peers would see an open
    connection to a dead rank and keep waiting, so the operating system kills it too. It ignores
    a SIGTERM or a Ctrl-C sent to the whole job: the rank still needs its batches for the step
    it saves. A SIGTERM from the rank itself counts: Python sends one at exit and waits for the
    worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on every system
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

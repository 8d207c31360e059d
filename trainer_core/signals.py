"""Signals: a loop that stops between two steps, and loader workers that end with their rank.

Leaned on by cell 2 (data) and cell 8 (launch).
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
    """An event that SIGTERM sets; the loop looks at it between two steps."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        return (yield stop)  # only the main thread may take signals
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


# %%
def exit_with_parent(_: int) -> None:
    """End this loader worker when its rank dies or says so, and not before. Linux only.

    A worker has inherited the rank's sockets. While it lives on, the other ranks see an open
    connection to a peer that is dead, and wait; so the kernel ends it. A SIGTERM to the whole
    job is the rank's to answer: it still needs the batches of the step that it saves. The
    rank's own SIGTERM counts: python sends it at its exit, and waits for the worker.
    """
    if sys.platform == "linux":
        parent = multiprocessing.parent_process()
        rank = parent.pid if parent else os.getppid()
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != rank:  # it died in between
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        def obey() -> None:
            while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
                pass
            os._exit(0)

        threading.Thread(target=obey, daemon=True).start()

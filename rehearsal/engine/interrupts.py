"""Ctrl-C, and a notebook's stop button, while something runs that must not be cut in half."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Inside, an interrupt waits; at the end, it happens.

    Torch can't be imported a second time once its first import was cut off: until the kernel is
    restarted, each try fails over a type that is already defined.
    """
    before = signal.getsignal(signal.SIGINT)
    # Signals come to the main thread only. Without a handler of Python's, none can wait.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting = list[tuple[int, FrameType | None]]()
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        before(*waiting[0])

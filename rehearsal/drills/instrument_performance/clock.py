"""The clock of a check, which the check itself moves on: no load can disturb what it measures.

Runs in the ranks. On the drawn clock, time passes only where the plan says so, and while a rank
waits for another one in a collective. Code that doesn't read it, because it has a clock that
nobody can replace, is judged by the machine's own: there, what takes time sleeps.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.distributed import ProcessGroup, Work

from rehearsal.engine.rank import RankContext

from .plan import SYNC

NS = 10**9
TICK_NS = 1000  # a reading takes time, too: code that waits for a moment sees it come
EPOCH_NS = 1_790_000_000 * NS
REDUCES = ("allreduce", "allreduce_coalesced", "reduce")
sleep, machine_clock = time.sleep, time.perf_counter


class Clock:
    """What time it is on this rank, for the learner's code and for what judges it.

    Ranks of one machine share a clock, so all begin at ``start_s``.

    Attributes:
        is_drawn: whether it is the drawn clock.
        syncs: collectives that were waited for.
        on_wait: is called after each of them, with the moment at which the wait began.
    """

    def __init__(self, context: RankContext, start_s: int) -> None:
        self.is_drawn, self.syncs, self._ns = True, 0, start_s * NS
        self.on_wait: Callable[[float], None] = lambda begin: None
        self._issued: list[Any] = []  # the collectives so far, as what one waits for
        self._numbers: dict[int, int] = {}  # of each of them, by its id
        # When each rank issued each of them, for the others to read.
        paths = [context.folder / f"clock-{rank}" for rank in range(context.world_size)]
        self._posts = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in paths]
        self._rank = context.rank

    def now(self) -> float:
        """Seconds."""
        return self._ns / NS if self.is_drawn else machine_clock()

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        if not self.is_drawn or threading.current_thread() is not threading.main_thread():
            sleep(seconds)
        else:
            self._ns += round(seconds * NS)

    def read_ns(self, since_ns: int = 0) -> int:
        """What the learner's code gets."""
        self._ns += TICK_NS
        return self._ns + since_ns

    # ------------------------------------------------------------ collectives

    def issued(self, issue: Callable[..., Any]) -> Callable[..., Any]:
        """Note when this rank issues a collective, before any rank can complete it."""

        def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
            number = len(self._issued)
            os.pwrite(self._posts[self._rank], struct.pack("q", self._ns), 8 * number)
            self._issued.append(None)
            self._issued[number] = work = issue(group, *args, **kwargs)  # kept: ids are reused
            self._numbers[id(work)] = number
            return work

        return noted

    def waited(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """No rank gets on from a collective before the last one has issued it."""

        def until_the_last(work: Any, *args: Any, **kwargs: Any) -> Any:
            begin = self.now()
            result = wait(work, *args, **kwargs)
            if (number := self._numbers.pop(id(work), None)) is not None:
                self.syncs += 1
                if self.is_drawn:
                    posts = [os.pread(file, 8, 8 * number) for file in self._posts]
                    moments = [struct.unpack("q", post)[0] for post in posts if post]
                    self._ns = max(self._ns, *moments) + round(SYNC * NS)
                self.on_wait(begin)
            return result

        return until_the_last

    # ------------------------------------------------------------ in place of the machine's

    @contextmanager
    def in_place(self, names: dict[str, Any]) -> Iterator[None]:
        """Inside, code whose globals are ``names`` reads this clock, and waits on it."""
        with ExitStack() as stack:

            def put(owner: Any, name: str, stand_in: Any) -> None:
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, stand_in)

            for name in REDUCES:
                put(ProcessGroup, name, self.issued(getattr(ProcessGroup, name)))
            put(Work, "wait", self.waited(Work.wait))
            if self.is_drawn:
                for name, stand_in in self.stand_ins().items():
                    original = getattr(time, name)
                    put(time, name, stand_in)
                    # Also where it was imported by name.
                    for own in [own for own, value in names.items() if value is original]:
                        stack.callback(names.__setitem__, own, original)
                        names[own] = stand_in
                put(timeit, "default_timer", time.perf_counter)
            yield

    def stand_ins(self) -> Mapping[str, Any]:
        """The clocks of the module time that show how much time has passed, and its sleep.

        Those of the CPU's time stay the machine's: a rank that waits uses next to none.
        """
        cpu_time = (time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_THREAD_CPUTIME_ID)
        machines = time.clock_gettime_ns

        def gettime_ns(which: int) -> int:
            if which in cpu_time:
                return machines(which)
            return self.read_ns(EPOCH_NS if which == time.CLOCK_REALTIME else 0)

        def in_seconds(read_ns: Callable[..., int]) -> Callable[..., float]:
            return lambda *which: read_ns(*which) / NS

        reads: dict[str, Callable[..., int]] = {
            "perf_counter": self.read_ns,
            "monotonic": self.read_ns,
            "time": lambda: self.read_ns(EPOCH_NS),
            "clock_gettime": gettime_ns,
        }
        stand_ins: dict[str, Any] = {"sleep": self.spend}
        for name, read_ns in reads.items():
            stand_ins |= {name: in_seconds(read_ns), f"{name}_ns": read_ns}
        return stand_ins

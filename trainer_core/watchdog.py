"""The watchdog: each rank's thread that ends the job when steps stop completing.

Supports cell 8 (launch). A hang leaves no traceback: the ranks that wait are innocent, and the
rank they wait for says nothing. So each rank has a thread that checks whether steps still
complete. The first rank to run out of patience collects a report from every rank through the
launcher's store, names the rank the others are waiting for, and ends the job. The launcher
then restarts it.

    beat      the end of a step: the training loop's sign of life
    report    where a rank is: its stack, and the last collective it issued
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from torch.distributed import PrefixStore, TCPStore

# %% active="py"
from trainer_core.distributed import RankInfo
from trainer_core.hang_report import (
    UNKNOWN,
    blame,
    hang_text,
    last_collective,
    process_identity,
    recorded_collectives,
    send_to_main_thread,
)
from trainer_core.metrics import StepTimers
from trainer_core.run_folder import Start
from trainer_core.run_log import print_problem


# %%
class Watchdog:
    """Watches this rank's training loop from a thread of its own.

    It only watches ranks started by a launcher: ending a notebook's process would help nobody.

    Args:
        timers: the loop's; they know whether it is saving.
        position: steps completed so far.
        event: writes to this rank's log.
    """

    def __init__(
        self,
        start: Start,
        info: RankInfo,
        timers: StepTimers,
        position: int,
        event: Callable[..., None],
    ) -> None:
        self.cfg = start.cfg
        self.info = info
        self.timers = timers
        self.event = event
        self.step = position
        self.beat_at = time.monotonic()
        self.is_first_step = True
        self.stacks = start.cfg.run_dir / "logs"
        self.interval_s = min(5.0, start.cfg.hang_timeout_s / 10)
        self.watched = threading.get_ident()
        self.late = threading.Event()
        self.overdue = (position, 0.0)  # once late: after which step, and for how many seconds
        self.ended = threading.Event()
        if info.world_size > 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # A connection of its own: the process group may be using its store.
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            name = f"watch {start.record['start_id']}"
            store = PrefixStore(name, TCPStore(*address, wait_for_workers=False))
            store.set(f"place/{info.rank}", json.dumps(process_identity(os.getpid())))
            # Written from C, so even a rank that can't run Python dumps its stack.
            file = (self.stacks / f"rank-{info.rank}.stack").open("w")
            faulthandler.register(signal.SIGUSR2, file)
            threading.Thread(target=self.watch, daemon=True).start()
            threading.Thread(target=self.listen, args=(store,), daemon=True).start()

    def beat(self, step: int) -> None:
        """Call this when a step, or its save, is complete.

        It never returns once this rank has raised the alarm. Gathering the reports wakes a
        stopped rank. If the loop then kept training, the run could end and close its log before
        the reports are in it.
        """
        if self.late.is_set():
            threading.Event().wait()  # until the reporting thread ends this process
        self.step = step
        self.beat_at = time.monotonic()
        self.is_first_step = False

    def close(self) -> None:
        """Stop watching."""
        self.ended.set()

    def is_late(self) -> bool:
        """Whether the next step is overdue.

        The first step (compilation) and a save (a slow disk) are slow for good reasons, so they
        get as long as a collective does.
        """
        limit_s = self.cfg.hang_timeout_s
        if self.is_first_step or self.timers.doing == "checkpoint":
            limit_s = max(limit_s, self.cfg.dist_timeout_s)
        return time.monotonic() - self.beat_at > limit_s

    def watch(self) -> None:
        """Check at least ten times per timeout whether this rank's step is overdue.

        It never touches the store. The store's host may be what hangs, and then a request
        blocks until the host continues, whatever the timeout says.
        """
        looked_at = time.monotonic()
        while not self.ended.wait(self.interval_s):
            now = time.monotonic()
            if now - looked_at > 2 * self.interval_s + 1:
                self.beat_at = now  # this process itself was stopped, maybe the whole job
            looked_at = now
            if self.is_late():
                # Noted now: the time it takes to gather the reports isn't part of the hang.
                self.overdue = (self.step, now - self.beat_at)
                self.late.set()
                # Reporting takes two rounds of three intervals, then ends this process.
                if not self.ended.wait(10 * self.interval_s):
                    self.exit_without_reports()

    def exit_without_reports(self) -> None:
        """End this rank without the other ranks' reports: the store is out of reach."""
        step, seconds = self.overdue
        print_problem(
            f"launch: no step for {seconds:.0f} s after step {step}, and the launcher's store "
            "doesn't answer: its host is gone or stopped. Ending the job. "
            f"Rank {self.info.rank} is at\n{self.stack()}"
        )
        os._exit(1)

    def listen(self, store: PrefixStore) -> None:
        """Wait for an alarm, from this rank or another, and report."""
        # If the store is gone, so is the launcher, and the job is ending anyway.
        with contextlib.suppress(RuntimeError):
            while not self.ended.wait(self.interval_s):
                if self.late.is_set() or store.check(["alarm"]):
                    self.report_and_exit(store)

    def stack(self) -> str:
        """Where the training loop is: its innermost calls."""
        return "".join(traceback.format_stack(sys._current_frames()[self.watched])[-8:])

    def report_and_exit(self, store: PrefixStore) -> None:
        """Report where this rank is; the first rank to do so prints all reports."""
        try:
            is_first = store.add("alarm", 1) == 1
            where = {"step": self.step, "doing": self.timers.doing, "stack": self.stack()}
            report = {"how": "answered", **where, **last_collective(recorded_collectives())}
            store.set(f"report/{self.info.rank}", json.dumps(report))
            if is_first:
                blamed = self.publish_reports(self.gather(store))
                store.set("reported", "")
                # A rank that reported may hang again, and the launcher waits for it to exit.
                self.send(store, blamed, signal.SIGKILL)
            with contextlib.suppress(RuntimeError):  # the store may end with the first rank
                store.wait(["reported"])
        except Exception:  # whatever failed here, the job hangs and has to end
            traceback.print_exc()
        finally:
            os._exit(1)

    def gather(self, store: PrefixStore) -> list[dict[str, Any]]:
        """Every rank's report. A silent rank gets SIGCONT, because it may be stopped."""
        reports: dict[int, dict[str, Any]] = {}
        silent = list(range(self.info.world_size))
        woken: list[int] = []
        # SIGUSR2 first, so that a stopped rank writes its stack before it continues.
        for signs in [(), (signal.SIGUSR2, signal.SIGCONT)]:
            woken = self.send(store, silent, *signs)
            deadline = time.monotonic() + 3 * self.interval_s
            while silent and time.monotonic() < deadline:
                for rank in [rank for rank in silent if store.check([f"report/{rank}"])]:
                    silent.remove(rank)
                    reports[rank] = json.loads(store.get(f"report/{rank}"))
                    if rank in woken:
                        reports[rank] |= {"how": "woken", "stack": self.dumped_stack(rank)}
                time.sleep(self.interval_s / 10)
        for rank in silent:
            reports[rank] = {"how": "silent", "stack": self.dumped_stack(rank), **UNKNOWN}
        return [reports[rank] for rank in range(self.info.world_size)]

    def send(self, store: PrefixStore, ranks: list[int], *signs: signal.Signals) -> list[int]:
        """Signal those of ``ranks`` that are other processes on this host; returns them."""
        reached = []
        for rank in ranks if signs else ():
            if store.check([f"place/{rank}"]):
                place = json.loads(store.get(f"place/{rank}"))
                pid = place[-1] if len(place) == 2 else place[2]
                if place == process_identity(pid) and pid != os.getpid():
                    reached.append(rank)
                    for sign in signs:
                        send_to_main_thread(pid, sign)
        return reached

    def dumped_stack(self, rank: int) -> str:
        """The stack that a rank wrote on SIGUSR2."""
        path = self.stacks / f"rank-{rank}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def publish_reports(self, reports: list[dict[str, Any]]) -> list[int]:
        """Print and log where every rank is; returns the ranks that the others wait for."""
        ranks, why = blame(reports)
        step, seconds = self.overdue
        print_problem(hang_text(seconds, step, reports))
        self.event("hang", step=step, ranks=ranks, reason=why, reports=reports)
        return ranks

"""Which rank has stopped the job, and where does every rank stand?

Leaned on by cell 8 (launch). A hang leaves no traceback: the ranks that wait are innocent, and
the one they wait for says nothing. So each rank has a thread that looks whether steps are still
made. The first to find that none was for too long asks all ranks for a report through the
launcher's store, names the rank that the others wait for, and ends the job so that the launcher
starts it again.

    beat      the end of a step: the sign of life of a training loop
    report    where a rank stands: its stack, and the last collective that it has issued
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore

# %% active="py"
from trainer_core.distributed import RankInfo
from trainer_core.metrics import StepTimers
from trainer_core.run_folder import Start

# %%
# Of a rank that cannot say it.
NOTHING = {"step": "?", "doing": "?", "issued": "?", "name": "?", "waits": False}


def last_collective() -> dict[str, Any]:
    """Number and name of the last collective of this rank, and whether it still waits in it."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump(True, False)).get("entries", []) if dump else []
    if not entries:
        return {"issued": 0, "name": "none known", "waits": False}
    last = entries[-1]
    number, name = last["collective_seq_id"], last["profiling_name"].partition(":")[2]
    return {"issued": number, "name": name, "waits": not last["retired"]}


def blame(reports: list[dict[str, Any]]) -> tuple[list[int], str]:
    """The ranks that the others wait for, and how that is known. Reports are by rank.

    None if they cannot be told apart.
    """
    for how, why in {
        "mute": "gave no report: gone, or in C code that keeps the GIL",
        "woken": "answered only after SIGCONT",
    }.items():
        if ranks := [rank for rank, report in enumerate(reports) if report["how"] == how]:
            return ranks, why
    busy = [rank for rank, report in enumerate(reports) if not report["waits"]]
    if len(busy) == len(reports):
        return [], "no rank waits in a collective; each stands where its stack says"
    if busy:
        return busy, "did not wait in a collective; the others did"
    fewest = min(report["issued"] for report in reports)
    late = [rank for rank, report in enumerate(reports) if report["issued"] == fewest]
    if len(late) < len(reports):
        return late, "had issued fewer collectives than the others"
    return [], "all ranks stood at the same collective"


def place_of(pid: int) -> list[Any]:
    """What tells a process from all others, also from a later one with its number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return [boot, os.readlink("/proc/self/ns/pid"), pid, started]
    except OSError:  # no Linux, or no such process
        return [platform.node(), pid]


def send_to_main_thread(pid: int, sign: signal.Signals) -> None:
    """Send a signal to a process; its handler runs where the main thread stands.

    A stopped process leaves a plain signal to whichever thread goes on first. The main thread
    may be some lines further when another one has written down where it stands.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it
    if tgkill is None:
        os.kill(pid, sign)
    else:
        tgkill(pid, pid, sign)


# %%
class Watchdog:
    """One rank's watch over the training loop, in a thread of its own.

    Only a launcher's ranks are watched: to end a notebook's kernel would help nobody.

    Args:
        timers: of the loop; they know whether it is saving.
        position: steps that are complete already.
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
        self.cfg, self.info, self.timers, self.event = start.cfg, info, timers, event
        self.step, self.beat_at, self.is_first_step = position, time.monotonic(), True
        self.stacks = start.cfg.run_dir / "logs"
        self.interval_s = min(5.0, start.cfg.hang_timeout_s / 10)
        self.watched = threading.get_ident()
        self.late, self.ended = threading.Event(), threading.Event()
        if info.world_size > 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # A connection of its own: the store of the process group may be in use.
            address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            name = f"watch {start.record['start_id']}"
            store = PrefixStore(name, TCPStore(*address, wait_for_workers=False))
            store.set(f"place/{info.rank}", json.dumps(place_of(os.getpid())))
            # From C, so that a rank that cannot run Python writes too.
            file = (self.stacks / f"rank-{info.rank}.stack").open("w")
            faulthandler.register(signal.SIGUSR2, file)
            threading.Thread(target=self.watch, daemon=True).start()
            threading.Thread(target=self.listen, args=(store,), daemon=True).start()

    def beat(self, step: int) -> None:
        """Say that a step, or its save, is complete."""
        self.step, self.beat_at, self.is_first_step = step, time.monotonic(), False

    def close(self) -> None:
        """Stop watching."""
        self.ended.set()

    def is_late(self) -> bool:
        """Whether the next step is overdue.

        The first step and a save may take as long as a collective: compilation, a slow disk.
        """
        limit_s = self.cfg.hang_timeout_s
        if self.is_first_step or self.timers.doing == "checkpoint":
            limit_s = max(limit_s, self.cfg.dist_timeout_s)
        return time.monotonic() - self.beat_at > limit_s

    def watch(self) -> None:
        """Look, a few times in each timeout, whether this rank's step is overdue.

        Without the store: its host may be what stands still, and a question to it is answered
        when it goes on, whatever the timeout.
        """
        looked_at = time.monotonic()
        while not self.ended.wait(self.interval_s):
            now = time.monotonic()
            if now - looked_at > 2 * self.interval_s + 1:
                self.beat_at = now  # this process was stopped itself, maybe the whole job
            looked_at = now
            if self.is_late():
                self.late.set()
                # An answer takes two rounds of three intervals, and ends this process.
                if not self.ended.wait(10 * self.interval_s):
                    self.leave_alone()

    def leave_alone(self) -> None:
        """End this rank, without the others' reports."""
        text = f"launch: no step for {time.monotonic() - self.beat_at:.0f} s after step "
        text += f"{self.step}, and the launcher's store does not answer: its host is gone or "
        text += f"stopped. The job ends. Rank {self.info.rank} stands at\n{self.stack()}"
        print(text, file=sys.stderr, flush=True)
        os._exit(1)

    def listen(self, store: PrefixStore) -> None:
        """Wait for the alarm, of this rank or of another, and answer it."""
        # Without the store there is no launcher either, and the job is ending.
        with contextlib.suppress(RuntimeError):
            while not self.ended.wait(self.interval_s):
                if self.late.is_set() or store.check(["alarm"]):
                    self.answer(store)

    def stack(self) -> str:
        """Where the training loop stands: the innermost calls."""
        return "".join(traceback.format_stack(sys._current_frames()[self.watched])[-8:])

    def answer(self, store: PrefixStore) -> None:
        """Report; the first to do so tells what all have reported. Ends the process."""
        try:
            is_first, step = store.add("alarm", 1) == 1, self.step
            here = {"step": step, "doing": self.timers.doing, "stack": self.stack()}
            report = {"how": "answered", **here, **last_collective()}
            store.set(f"report/{self.info.rank}", json.dumps(report))
            if is_first:
                blamed = self.tell(step, self.gather(store))
                store.set("told", "")
                # It may have answered and hang again; the launcher waits for its end.
                self.send(store, blamed, signal.SIGKILL)
            with contextlib.suppress(RuntimeError):  # it may end with the rank that tells
                store.wait(["told"])
        except Exception:  # the job ends all the same: it stands still
            traceback.print_exc()
        finally:
            os._exit(1)

    def gather(self, store: PrefixStore) -> list[dict[str, Any]]:
        """What each rank reports; those that say nothing are woken, for they may be stopped."""
        reports: dict[int, dict[str, Any]] = {}
        mute, woken = list(range(self.info.world_size)), list[int]()
        # SIGUSR2 first, so that a stopped rank writes down where it stood before it goes on.
        for signs in [(), (signal.SIGUSR2, signal.SIGCONT)]:
            woken = self.send(store, mute, *signs)
            deadline = time.monotonic() + 3 * self.interval_s
            while mute and time.monotonic() < deadline:
                for rank in [rank for rank in mute if store.check([f"report/{rank}"])]:
                    mute.remove(rank)
                    reports[rank] = json.loads(store.get(f"report/{rank}"))
                    if rank in woken:
                        reports[rank] |= {"how": "woken", "stack": self.written(rank)}
                time.sleep(self.interval_s / 10)
        for rank in mute:
            reports[rank] = {"how": "mute", "stack": self.written(rank), **NOTHING}
        return [reports[rank] for rank in range(self.info.world_size)]

    def send(self, store: PrefixStore, ranks: list[int], *signs: signal.Signals) -> list[int]:
        """Send signals to those of the ranks that are other processes of this host: which?"""
        reached = []
        for rank in ranks if signs else ():
            if store.check([f"place/{rank}"]):
                place = json.loads(store.get(f"place/{rank}"))
                pid = place[-1] if len(place) == 2 else place[2]
                if place == place_of(pid) and pid != os.getpid():
                    reached.append(rank)
                    for sign in signs:
                        send_to_main_thread(pid, sign)
        return reached

    def written(self, rank: int) -> str:
        """The stack that a rank has written at SIGUSR2."""
        path = self.stacks / f"rank-{rank}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def tell(self, step: int, reports: list[dict[str, Any]]) -> list[int]:
        """Say on stderr and in the log who stands where; returns the ranks to blame."""
        ranks, why = blame(reports)
        who = f"rank {', '.join(map(str, ranks))} {why}" if ranks else why
        text = f"no step for {time.monotonic() - self.beat_at:.0f} s after step {step}: {who}. "
        text += "The job ends; torchrun starts it again if it may. Should steps take so long, "
        text += "raise --hang-timeout-s."
        print(f"launch: {text}", file=sys.stderr)
        for rank, report in enumerate(reports):
            waits = "waits in" if report["waits"] else "last collective:"
            stands = (
                f"step {report['step']}, {report['doing']}; {waits} {report['name']}, number "
            )
            stands += f"{report['issued']}; stands at\n{report['stack'] or 'an unknown line'}"
            print(f"[rank {rank}/{len(reports)}] {stands}", file=sys.stderr, flush=True)
        self.event("hang", step=step, ranks=ranks, reason=why, reports=reports)
        return ranks

"""Which rank stalled a job, and where every rank is stuck.

Supports cell 8 (launch). A report is one rank's: ``how`` it came (answered, woken by SIGCONT,
mute), its step, phase and stack, and the last collective that it issued.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
from pathlib import Path
from typing import Any

import torch

# %%
# For a rank that can't report.
UNKNOWN = {"step": "?", "doing": "?", "issued": "?", "name": "?", "waits": False}


def last_collective() -> dict[str, Any]:
    """Number and name of this rank's last collective, and whether it is still waiting in it."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    entries = json.loads(dump(True, False)).get("entries", []) if dump else []
    if not entries:
        return {"issued": 0, "name": "none known", "waits": False}
    last = entries[-1]
    return {
        "issued": last["collective_seq_id"],
        "name": last["profiling_name"].partition(":")[2],
        "waits": not last["retired"],
    }


def blame(reports: list[dict[str, Any]]) -> tuple[list[int], str]:
    """The ranks that the others wait for, and the evidence. Reports are ordered by rank.

    No ranks if they can't be told apart.
    """
    for how, why in {
        "mute": "sent no report: it is gone, or in C code that holds the GIL",
        "woken": "answered only after SIGCONT",
    }.items():
        if ranks := [rank for rank, report in enumerate(reports) if report["how"] == how]:
            return ranks, why
    busy = [rank for rank, report in enumerate(reports) if not report["waits"]]
    if len(busy) == len(reports):
        return [], "no rank waits in a collective; each one's stack shows where it is"
    if busy:
        return busy, "was not waiting in a collective; the others were"
    fewest = min(report["issued"] for report in reports)
    late = [rank for rank, report in enumerate(reports) if report["issued"] == fewest]
    if len(late) < len(reports):
        return late, "had issued fewer collectives than the others"
    return [], "all ranks were at the same collective"


def process_identity(pid: int) -> list[Any]:
    """What distinguishes a process from every other, even from a later one with its pid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return [boot, os.readlink("/proc/self/ns/pid"), pid, started]
    except OSError:  # no Linux, or no such process
        return [platform.node(), pid]


def send_to_main_thread(pid: int, sign: signal.Signals) -> None:
    """Send a signal to a process's main thread, so its handler runs where that thread is.

    A stopped process hands a plain signal to whichever thread continues first. By the time
    another thread has written the main thread's stack, the main thread may have moved on.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it
    if tgkill is None:
        os.kill(pid, sign)
    else:
        tgkill(pid, pid, sign)


# %%
def hang_text(seconds: float, step: int, reports: list[dict[str, Any]]) -> str:
    """What the terminal shows: whom the others wait for, then where every rank is."""
    ranks, why = blame(reports)
    blamed = f"rank {', '.join(map(str, ranks))} {why}" if ranks else why
    paragraphs = [
        f"launch: no step for {seconds:.0f} s after step {step}: {blamed}. Ending the job; "
        "torchrun restarts it if it has restarts left. If steps really take this long, raise "
        "--hang-timeout-s."
    ]
    for rank, report in enumerate(reports):
        state = "waiting in" if report["waits"] else "last collective:"
        paragraphs.append(
            f"[rank {rank}/{len(reports)}] step {report['step']}, {report['doing']}; {state} "
            f"{report['name']}, number {report['issued']}; at\n"
            f"{report['stack'] or 'an unknown line'}"
        )
    return "\n".join(paragraphs)

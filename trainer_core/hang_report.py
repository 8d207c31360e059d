"""Which rank stalled a job, and where every rank is stuck.

Supports cell 8 (launch). A report is about one rank: ``how`` we got it (answered, woken by
SIGCONT, silent), its step, phase and stack, and the last collective it issued.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

# %%
# For a rank that can't report.
UNKNOWN = {"step": "?", "doing": "?", "issued": "?", "name": "?", "waits": False}
# torch has a flight recorder for gloo, and one of its own for NCCL in builds with CUDA.
RECORDERS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}


def recorded_collectives() -> dict[str, list[dict[str, Any]]]:
    """Each flight recorder's entries, oldest first; empty for a recorder this torch lacks."""
    entries = {}
    for backend, name in RECORDERS.items():
        dump = getattr(torch._C._distributed_c10d, name, None)
        entries[backend] = json.loads(dump(True, False)).get("entries", []) if dump else []
    return entries


def last_collective(recorded: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The collective this rank waits in, or else its last one, and how many it has issued.

    On a GPU, gradients and loss records travel by NCCL, votes and objects by gloo. Gloo's last
    entry says whether the rank waits there. NCCL calls only queue work: the host runs ahead and
    waits where it reads a value, such as in ``tolist()``. So a rank waits if any NCCL
    collective it has queued isn't done, and it waits in the oldest one.

    Args:
        recorded: the entries of both recorders, as ``recorded_collectives`` returns them.
    """
    gloo, nccl = recorded["gloo"], recorded["nccl"]
    # An entry is retired by a thread that looks every 100 ms; its state is read at the dump.
    pending = [e for e in nccl if not e["retired"] and e["state"] != "completed"]
    pending = pending[:1] + [e for e in gloo[-1:] if not e["retired"]]
    latest = [*gloo[-1:], *nccl[-1:]]
    if not latest:
        return {"issued": 0, "name": "none known", "waits": False}
    at = min(pending, key=created) if pending else max(latest, key=created)
    return {
        # Each recorder counts its own. All ranks issue the same ones in the same order, so the
        # rank with the smaller sum is behind.
        "issued": sum(entry["collective_seq_id"] for entry in latest),
        "name": at["profiling_name"].partition(":")[2],
        "waits": bool(pending),
    }


def created(entry: Mapping[str, Any]) -> int:
    """When a collective was issued; both recorders use the same clock."""
    return int(entry["time_created_ns"])


def blame(reports: list[dict[str, Any]]) -> tuple[list[int], str]:
    """The ranks that the others wait for, and the evidence. No ranks if nothing sets any apart.

    Args:
        reports: one per rank, in rank order.
    """
    for how, why in {
        "silent": "sent no report: it is gone, or in C code that holds the GIL",
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
    """What tells a process from every other one, even a later one with the same pid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [boot, os.readlink("/proc/self/ns/pid"), pid, str(start_ticks(pid))]
    except OSError:  # not Linux, or no such process
        return [platform.node(), pid]


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot. Linux only."""
    # Field 22 in proc(5), counted from after the name (field 2), which may contain spaces.
    fields_from_3 = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields_from_3[19])


def send_to_main_thread(pid: int, sign: signal.Signals) -> None:
    """Send a signal to a process's main thread, so its handler runs where that thread is.

    In a stopped process, a plain signal goes to whichever thread continues first. By the time
    some other thread has written the main thread's stack, the main thread may have moved on.
    """
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it
    if tgkill is None:
        os.kill(pid, sign)
    else:
        tgkill(pid, pid, sign)


# %%
def hang_text(seconds: float, step: int, reports: list[dict[str, Any]]) -> str:
    """What the terminal shows: who holds up the job, then where every rank is."""
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

"""How reliable is the coach? Do verdicts ever change, and do kernels survive hostile code?

    python scripts/soak.py verdicts --times 50    check every solution of every drill 50 times
    python scripts/soak.py kernels --times 50     run hostile code in 50 Jupyter kernels

Prints one line per drill or kernel. Exit code 1 if anything was not as expected.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from jupyter_client.manager import KernelManager

from rehearsal import drills, grade_source
from rehearsal.engine.processes import stat_of
from rehearsal.engine.ranks import RUNNING_AGAIN

DRILL = "lift_to_distributed"
HOSTILE = {
    "an endless loop": ("while True: pass", "hung"),
    "an endless loop in C that keeps the GIL": ("ctypes.PyDLL(None).sleep(60)", "hung"),
    "a collective that one rank never joins": (
        "dist.barrier() if dist.get_rank() == 0 else time.sleep(60)",
        "hung",
    ),
    "a fork bomb": ("while True: os.fork()", "hung crashed"),
    "a thread that never ends": (
        "threading.Thread(target=time.sleep, args=(60,)).start(); raise KeyError('x')",
        "crashed",
    ),
    "10 GiB": ("torch.ones(10 * 2**30, dtype=torch.uint8).sum()", "crashed"),
    "closed stdout": ("os.close(1); os.close(2); sys.stdout.close()", "wrong crashed"),
    "abort in C": ("os.abort()", "crashed"),
    "a segmentation fault": ("ctypes.string_at(0)", "crashed"),
    "os._exit(0)": ("os._exit(0)", "crashed"),
    "a daemon that left its process group": (
        "subprocess.Popen(['sleep', '600'], start_new_session=True); raise KeyError('x')",
        "crashed",
    ),
    "endless recursion": (
        "train(model, inputs, targets, epochs=1, global_batch_size=1, lr=1)",
        "crashed",
    ),
    "a flood of output": (
        "print('x' * 10000) or [print(i) for i in range(10**5)]",
        "wrong crashed hung",
    ),
    "killing the ranks' server": ("os.kill(os.getppid(), 9)\n    while True: pass", "crashed"),
}
CELL = """
import ctypes, os, subprocess, sys, threading, time
import torch, torch.distributed as dist
def train(model, inputs, targets, *, epochs, global_batch_size, lr):
    {code}
import rehearsal
try:
    outcome = rehearsal.grade({drill!r}, globals()).status
except Exception as error:
    outcome = type(error).__name__
print("OUTCOME", outcome)
"""


def soak_verdicts(times: int) -> Iterator[str]:
    """One line per drill, and every verdict that was not a pass."""
    for drill in drills():
        seen, said = dict[str, Counter[str]](), list[str]()
        for name, text in drill.solutions().items():
            verdicts = [grade_source(drill.id, text, echo=said.append) for _ in range(times)]
            seen[name] = Counter(verdict.status for verdict in verdicts)
            for odd in [verdict for verdict in verdicts if verdict.status != "passed"]:
                yield f"NOT PASSED {drill.id} {name}\n{odd}"
        passed = sum(counts["passed"] for counts in seen.values())
        repeated = sum(line.endswith(RUNNING_AGAIN) for line in said)
        again = f", {repeated} rerun" if repeated else ""
        checks = f"{times * len(seen)} checks of {len(seen)} solutions"
        yield f"{drill.id}: {passed} of {checks} passed{again}"


def soak_kernels(times: int) -> Iterator[str]:
    """One line per kernel: the outcome, whether the kernel still works, and what still runs."""
    for name, (code, expected) in islice(cycle(HOSTILE.items()), times):
        mark = uuid.uuid4().hex  # every process that descends from this kernel inherits it
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, "SOAK": mark, "REHEARSAL_HOME": home}
            kernel = KernelManager(kernel_name="python3")
            kernel.start_kernel(env=environment, cwd=str(Path(__file__).parents[1]))
            try:
                said = run_cell(kernel, CELL.format(code=code, drill=DRILL))
                lives = run_cell(kernel, "print(6 * 7)") == "42"
                # The server stays for the next check; no rank may still be running.
                left = [line for line in processes_of(mark) if not is_ours(line)]
            finally:
                kernel.shutdown_kernel(now=False)
        deadline = time.monotonic() + 10
        while (after := processes_of(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        outcome = said.rpartition("OUTCOME ")[2].strip()
        is_ok = lives and not left and not after and outcome in expected.split()
        yield f"{'' if is_ok else 'NOT OK '}{name}: {outcome}; kernel " + (
            f"{'alive' if lives else 'dead'}; still running: {(left + after) or 'nothing'}"
        )


def run_cell(kernel: KernelManager, code: str) -> str:
    """What a cell prints; "" if the kernel does not reply within two minutes."""
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        printed: list[str] = []

        def listen(message: dict[str, dict[str, str]]) -> None:
            printed.append(message["content"].get("text", ""))

        client.execute_interactive(code, timeout=120, output_hook=listen)
    except (TimeoutError, RuntimeError):
        return ""
    finally:
        client.stop_channels()
    return "".join(printed).strip()


def processes_of(mark: str) -> list[str]:
    """Running processes with the mark in their environment, as "parent > command line"."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"SOAK={mark}".encode() in (path / "environ").read_bytes():
                parent = stat_of(int(path.name)).parent
                found.append(f"{command_line(str(parent))} > {command_line(path.name)}")
        except OSError:  # it has exited, or belongs to another user
            continue
    return found


def command_line(pid: str) -> str:
    """The first 80 characters of a process's command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return words.decode(errors="replace")[:80]


def is_ours(line: str) -> bool:
    """Whether a process is the kernel, or the server it started.

    A rank has the server's command line too, but the server as its parent.
    """
    parent, _, own = line.partition(" > ")
    return "ipykernel" in own or (
        "ipykernel" in parent and "rehearsal.engine.forkserver" in own
    )


def main(arguments: list[str]) -> int:
    """Run the soak test; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("verdicts", "kernels"), help="what to test")
    text = "checks per solution, or kernels (default: 50)"
    parser.add_argument("--times", type=int, default=50, metavar="N", help=text)
    options = parser.parse_args(arguments)
    soak = {"verdicts": soak_verdicts, "kernels": soak_kernels}[options.what]
    bad, seconds, last = 0, list[float](), time.perf_counter()
    for line in soak(options.times):
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        bad += line.startswith("NOT")
        print(line, flush=True)
    print(f"{bad} not as expected; median time per line: {median(seconds):.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

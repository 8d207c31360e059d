"""The demo: two ranks train on real data, one is killed, and no sample is lost.

    python scripts/demo.py

Trains `--data digits` under torchrun twice: once uninterrupted, and once with a SIGKILL of rank
1 mid-run, after which torchrun restarts both ranks. Then it audits the ledgers and compares the
two runs' final weights.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.pictures import loss_curves, sample_map
from rehearsal.evidence.run_records import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
KILL_AFTER_STEP = 150
FLAGS = "--data digits --dropout 0.1 --max-epochs 6 --checkpoint-every-steps 40 --log-every 1"
FLAGS += " --device cpu"  # two ranks: a machine with one GPU has a device for only one of them


def start_torchrun(run_dir: Path) -> subprocess.Popen[str]:
    """Start two ranks of scripts/launch.py under torchrun, which restarts them if one dies."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--monitor-interval=0.05",
        str(ROOT / "scripts/launch.py"),
        "--run-dir",
        str(run_dir),
        *FLAGS.split(),
    ]
    log = (run_dir.parent / f"{run_dir.name}.log").open("w")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    )


def finish(job: subprocess.Popen[str], run_dir: Path) -> dict[str, Any]:
    """Wait for the job, and return the summary that rank 0 printed last."""
    output, _ = job.communicate()
    if job.returncode:
        log = run_dir.parent / f"{run_dir.name}.log"
        sys.exit(f"{run_dir}: torchrun exited with {job.returncode}. Its output is in {log}.")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def kill_rank(job: subprocess.Popen[str], run_dir: Path, rank: int, after_step: int) -> int:
    """SIGKILL ``rank`` once its ledger shows ``after_step``; returns the last step it shows."""
    ledger, log = (run_dir / kind / f"rank-{rank}.jsonl" for kind in ("ledger", "logs"))
    while job.poll() is None:
        lines = list(read_jsonl(ledger)) if ledger.exists() else []
        last = lines[-1]["step"] if lines else 0
        if last >= after_step:
            pid = next(line["pid"] for line in read_jsonl(log) if line["event"] == "run_start")
            os.kill(pid, signal.SIGKILL)
            return last
        time.sleep(0.02)
    sys.exit(f"{run_dir}: the run ended before step {after_step}, so no rank was killed.")


def main() -> None:
    """Run the demo and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs", help="folder for the two runs"
    )
    out = parser.parse_args().out / time.strftime("demo-%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    straight, killed = out / "straight", out / "killed"

    print("1. Train on scikit-learn's digits: two ranks, uninterrupted ...", flush=True)
    uninterrupted = finish(start_torchrun(straight), straight)
    print(f"   step {uninterrupted['step']}, loss {uninterrupted['loss']:.4f}")

    print(f"2. Train again, but SIGKILL rank 1 after step {KILL_AFTER_STEP} ...", flush=True)
    job = start_torchrun(killed)
    last = kill_rank(job, killed, rank=1, after_step=KILL_AFTER_STEP)
    at = time.perf_counter()
    print(f"   killed after step {last}; torchrun restarts both ranks ...", flush=True)
    resumed = finish(job, killed)
    events = read_jsonl(killed / "logs" / "rank-0.jsonl")
    restored = next(e for e in events if e["event"] == "checkpoint_restored")
    seconds = time.perf_counter() - at
    print(f"   resumed from {restored['folder']}, finished {seconds:.1f} s after the kill")

    print("3. Audit the ledgers, compare the weights:")
    report = audit_run(killed)
    print(f"   {report.status}: {report.epochs} epochs, {report.steps} steps")
    print(f"   samples trained twice: {report.duplicates}, samples missed: {report.misses}")
    print(f"   steps retrained after the kill: {report.replayed_steps}")
    hashes = [result["weights_sha256"] for result in (uninterrupted, resumed)]
    is_equal = hashes[0] == hashes[1]
    print(f"   weights, uninterrupted:      {hashes[0][:16]}")
    print(f"   weights, killed and resumed: {hashes[1][:16]}")
    print(f"   {'bit-identical' if is_equal else 'DIFFERENT'}")
    pictures = {"sample_map.png": sample_map(killed)}
    runs = {"uninterrupted": straight, "killed and resumed": killed}
    pictures["loss.png"] = loss_curves(runs)
    for name, figure in pictures.items():
        figure.savefig(out / name, dpi=150)
    print("4. See for yourself:")
    for name in pictures:
        print(f"   {out / name}")
    print(f"   python scripts/audit_run.py {killed}")
    if report.status != "proved" or not is_equal:
        sys.exit(1)


if __name__ == "__main__":
    main()

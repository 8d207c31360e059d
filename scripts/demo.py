"""The demonstration: two ranks train on real data, one is killed, and no sample is lost.

    python scripts/demo.py

Trains `--data digits` under torchrun twice: once undisturbed, once with a SIGKILL of rank 1 on
the way, after which torchrun restarts both ranks. Then the audit reads the ledgers, and the
weights of the two runs are compared.
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

from rehearsal.evidence.audit import audit_run, read_jsonl
from rehearsal.evidence.pictures import loss_curves, sample_map

ROOT = Path(__file__).resolve().parents[1]
KILL_AFTER_STEP = 150
FLAGS = "--data digits --dropout 0.1 --max-epochs 6 --checkpoint-every-steps 40 --log-every 1"


def start_torchrun(run_dir: Path) -> subprocess.Popen[str]:
    """Two ranks of scripts/launch.py under torchrun, restarted when one dies."""
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
    """Wait for the job; the last line that rank 0 printed."""
    output, _ = job.communicate()
    if job.returncode:
        log = run_dir.parent / f"{run_dir.name}.log"
        sys.exit(f"{run_dir}: torchrun ended with {job.returncode}. Its output is in {log}.")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def kill_rank(job: subprocess.Popen[str], run_dir: Path, rank: int, after_step: int) -> int:
    """SIGKILL ``rank`` when its ledger shows ``after_step``; its last trained step."""
    ledger, log = (run_dir / kind / f"rank-{rank}.jsonl" for kind in ("ledger", "logs"))
    while job.poll() is None:
        lines = list(read_jsonl(ledger)) if ledger.exists() else []
        last = lines[-1]["step"] if lines else 0
        if last >= after_step:
            pid = next(line["pid"] for line in read_jsonl(log) if line["event"] == "run_start")
            os.kill(pid, signal.SIGKILL)
            return last
        time.sleep(0.02)
    sys.exit(f"{run_dir}: the run ended before step {after_step}, so nobody was killed.")


def main() -> None:
    """Run the demonstration and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs", help="folder for the two runs"
    )
    out = parser.parse_args().out / time.strftime("demo-%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    straight, killed = out / "straight", out / "killed"

    print("1. Two ranks under torchrun, scikit-learn's digits, undisturbed ...", flush=True)
    undisturbed = finish(start_torchrun(straight), straight)
    print(f"   step {undisturbed['step']}, loss {undisturbed['loss']:.4f}")

    print(
        f"2. The same again; rank 1 gets a SIGKILL after step {KILL_AFTER_STEP} ...", flush=True
    )
    job = start_torchrun(killed)
    last = kill_rank(job, killed, rank=1, after_step=KILL_AFTER_STEP)
    at = time.perf_counter()
    print(f"   killed after step {last}; torchrun restarts both ranks ...", flush=True)
    resumed = finish(job, killed)
    events = read_jsonl(killed / "logs" / "rank-0.jsonl")
    restored = next(e for e in events if e["event"] == "checkpoint_restored")
    seconds = time.perf_counter() - at
    print(f"   restored {restored['folder']}, done {seconds:.1f} s after the kill")

    print("3. The audit of the ledgers:")
    report = audit_run(killed)
    twice, missed = report.duplicates, report.misses
    print(f"   {report.status}: {report.epochs} epochs, {report.steps} steps")
    print(f"   samples trained twice: {twice}, missed: {missed}")
    print(f"   steps trained again after the kill: {report.replayed_steps}")
    hashes = [result["weights_sha256"] for result in (undisturbed, resumed)]
    is_equal = hashes[0] == hashes[1]
    print(f"   weights undisturbed: {hashes[0][:16]}, killed, resumed: {hashes[1][:16]}")
    print(f"   {'equal bit for bit' if is_equal else 'DIFFERENT'}")
    pictures = {"sample_map.png": sample_map(killed)}
    runs = {"undisturbed": straight, "killed, resumed": killed}
    pictures["loss.png"] = loss_curves(runs)
    for name, figure in pictures.items():
        figure.savefig(out / name, dpi=150)
    print("4. Look at:")
    for name in pictures:
        print(f"   {out / name}")
    print(f"   python scripts/audit_run.py {killed}")
    if report.status != "proved" or not is_equal:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""How often to save: the checkpoint interval with the highest goodput, and that goodput.

    python scripts/cadence.py --save-s 4 --restart-s 60 --mtbf-h 8 --step-s 2
    python scripts/cadence.py --run-dir RUN --mtbf-h 8 [--plot FILE] [--json]
    python scripts/cadence.py --save-s 4 --restart-s 600 --ranks 16384 --mtbf-per-rank-h 50000

With --run-dir, any time you don't give is measured from the run's own logs. Exit codes: 0 done,
2 usage error.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rehearsal.evidence.cadence import (
    Costs,
    best_interval,
    best_steps,
    check_durations,
    check_ranks,
    daly_interval,
    expected_goodput,
    first_order_goodput,
    job_mtbf_s,
    young_interval,
)
from rehearsal.evidence.cadence_simulation import Stragglers, enough_failures, simulate_job
from rehearsal.evidence.run_records import Steps, read_jsonl, read_ledger, read_logs


def read_config(run_dir: Path) -> tuple[bool, int | None]:
    """From config.json: whether the run saves asynchronously, and its steps per epoch."""
    try:
        config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False, None
    match config:
        case {"config": {"async_checkpoint": bool(is_async)}, "steps_per_epoch": int(steps)}:
            return is_async, steps
    return False, None


def read_saves(run_dir: Path) -> dict[str, float]:
    """The median stall of a save and, for asynchronous saves, the median time to publish.

    A train_progress record has the longest checkpoint phase since the previous record. That
    maximum is what shows a save: with one save in 20 steps, p50 and p95 are both 0. The slowest
    rank counts, because the others wait for it at the next gradient sync.
    """
    stalls_s: dict[tuple[int, int], float] = {}
    written_s = []
    for path in sorted((run_dir / "logs").glob("rank-*.jsonl")):
        for record in read_jsonl(path):
            match record:
                case {
                    "event": "train_progress",
                    "attempt": int(attempt),
                    "step": int(step),
                    "phases": {"checkpoint": {"max": int(stall_ms) | float(stall_ms)}},
                } if stall_ms > 0:
                    stall_s = max(stall_ms / 1000, stalls_s.get((attempt, step), 0.0))
                    stalls_s[attempt, step] = stall_s
                case {"event": "checkpoint_saved", "seconds": int(seconds) | float(seconds)}:
                    written_s.append(seconds)
    measured = {"save_s": median(stalls_s.values())} if stalls_s else {}
    is_async, _ = read_config(run_dir)
    return measured | ({"publish_s": median(written_s)} if is_async and written_s else {})


def read_restarts(ledger: dict[int, Steps], ended: set[int], step_s: float) -> list[float]:
    """Seconds from the last step of the first rank to go silent to the next attempt's first.

    One typical step is subtracted, because it is useful work. An attempt that ``ended`` cleanly
    did not fail.
    """
    restarts_s = []
    for (attempt, before), (_, after) in pairwise(sorted(ledger.items())):
        last_s: dict[int, float] = {}
        for lines in before.values():
            for line in lines:
                last_s[line.rank] = max(line.time, last_s.get(line.rank, 0.0))
        first_s = max(line.time for line in after[min(after)])
        if attempt not in ended and min(last_s.values()) > 0:
            restarts_s.append(first_s - min(last_s.values()) - step_s)
    return [restart_s for restart_s in restarts_s if restart_s > 0]


def measure_run(run_dir: Path) -> dict[str, float]:
    """save_s, publish_s, restart_s and step_s, as far as a run's logs and ledgers show them.

    Raises:
        ValueError: if there is no such folder.
    """
    if not run_dir.is_dir():
        raise ValueError(
            f"--run-dir {run_dir}: no such folder, so nothing can be measured. Name the folder "
            "you gave launch.py as --run-dir."
        )
    measured, ledger, logs = read_saves(run_dir), read_ledger(run_dir), read_logs(run_dir)
    all_lines = (
        line for steps in ledger.values() for lines in steps.values() for line in lines
    )
    if steps_s := [line.step_s for line in all_lines if line.rank == 0 and line.step_s > 0]:
        measured["step_s"] = median(steps_s)
        if restarts_s := read_restarts(ledger, logs.ended, measured["step_s"]):
            measured["restart_s"] = median(restarts_s)
    return measured


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
    hours: dict[str, Any] = {"type": float, "metavar": "HOURS"}
    add("--save-s", **seconds, help="how long a save stalls all ranks")
    add("--publish-s", **seconds, help="from the stall's end until an async save is usable")
    add("--restart-s", **seconds, help="from a failure to the first new step")
    add("--step-s", "--steps-s", **seconds, help="time of a step without stragglers")
    add("--mtbf-h", **hours, help="mean time between failures of the whole job")
    add("--mtbf-per-rank-h", **hours, help="the same for a single rank; needs --ranks")
    add("--ranks", type=int, metavar="N", help="world size of the job")
    add("--spread", type=float, metavar="S", help="relative spread of step times, e.g. 0.02")
    add("--run-dir", type=Path, metavar="RUN", help="measure any time not given from this run")
    add("--plot", type=Path, metavar="FILE", help="draw goodput vs. interval (.png, .svg)")
    add("--limits", type=Path, metavar="FILE", help="draw where Young's formula goes wrong")
    add("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(arguments)


def mtbf_s_of(args: argparse.Namespace) -> float:
    """The job's mean time between failures, from either flag.

    Raises:
        ValueError: if there is none, or two, or no --ranks to divide by.
    """
    if (args.mtbf_h is None) == (args.mtbf_per_rank_h is None):
        found = "neither" if args.mtbf_h is None else "both"
        raise ValueError(
            f"{found} of --mtbf-h and --mtbf-per-rank-h given: the interval depends on exactly "
            "one failure rate, and no run is long enough to measure it. Give one of them, for "
            "example --mtbf-h 8."
        )
    if args.mtbf_per_rank_h is None:
        check_durations(mtbf_h=args.mtbf_h)
        return float(3600 * args.mtbf_h)
    if args.ranks is None:
        raise ValueError(
            f"--mtbf-per-rank-h {args.mtbf_per_rank_h:g} without --ranks: a job of N ranks "
            "fails N times as often as one rank. Add --ranks N."
        )
    return job_mtbf_s(args.mtbf_per_rank_h, args.ranks)


def resolve(args: argparse.Namespace) -> tuple[Costs, float | None, Stragglers | None]:
    """Costs, step time and stragglers: from the flags, or else measured from the run.

    Raises:
        ValueError: if a value is missing or impossible.
    """
    measured = measure_run(args.run_dir) if args.run_dir else {}
    names = ("save_s", "restart_s", "publish_s", "step_s")
    given = {name: getattr(args, name) for name in names}
    values = measured | {name: value for name, value in given.items() if value is not None}
    for name, what in (("save_s", "save"), ("restart_s", "restart after a failure")):
        if name not in values:
            where = f"{args.run_dir} shows no {what}, and " if args.run_dir else ""
            raise ValueError(
                f"{where}--{name.replace('_', '-')} is not given: the interval depends on how "
                f"long a {what} takes. Give --{name.replace('_', '-')} SECONDS."
            )
    step_s = values.pop("step_s", None)
    if step_s is not None:
        check_durations(step_s=step_s)
    if args.spread is not None and args.ranks is None:
        raise ValueError(
            f"--spread {args.spread:g} without --ranks: how slow the slowest rank is depends "
            "on how many there are. Add --ranks N."
        )
    if args.ranks is not None:
        check_ranks(args.ranks)
    stragglers = Stragglers(ranks=args.ranks, spread=args.spread) if args.spread else None
    return Costs(**values, mtbf_s=mtbf_s_of(args)), step_s, stragglers


def examine(
    costs: Costs, step_s: float | None, stragglers: Stragglers | None
) -> dict[str, Any]:
    """The intervals worth comparing, each with its goodput by formula and in simulation."""
    slowdown = stragglers.mean_slowdown() if stragglers else 1.0
    best_s, num_steps = best_interval(costs, slowdown), None
    if step_s is not None:
        num_steps = best_steps(costs, step_s, slowdown)
        best_s = num_steps * step_s
    intervals_s = {
        "best": best_s,
        "half": best_s / 2,
        "double": best_s * 2,
        "Young": young_interval(costs.save_s, costs.mtbf_s) / slowdown,
        "Daly": daly_interval(costs.save_s, costs.mtbf_s) / slowdown,
    }
    rows: dict[str, dict[str, Any]] = {}
    count = enough_failures(best_s / 2, costs)
    for name, interval_s in intervals_s.items():
        rng = np.random.default_rng(0)  # the same failures for each interval
        job = simulate_job(interval_s, costs, rng, num_failures=count, stragglers=stragglers)
        rows[name] = {
            "interval_s": interval_s,
            "steps": None if step_s is None else interval_s / step_s,
            "goodput": expected_goodput(interval_s, costs, slowdown),
            "simulated": asdict(job),
        }
    return {
        "costs": asdict(costs),
        "step_s": step_s,
        "slowdown": slowdown,
        "checkpoint_every_steps": num_steps,
        "first_order_goodput": first_order_goodput(slowdown * best_s, costs) / slowdown,
        "simulated_failures": count,
        "intervals": rows,
    }


def format_report(report: dict[str, Any]) -> str:
    """The report as aligned tables, with the flag to copy as the last line."""
    lines = [f"{name:12}{value:.6g}" for name, value in report["costs"].items() if value]
    if report["step_s"] is not None:
        lines.append(f"{'step_s':12}{report['step_s']:.6g}")
    if report["slowdown"] != 1:
        lines.append(f"{'slowdown':12}{report['slowdown']:.4f} from the slowest rank")
    lines += ["", "interval     seconds     steps   goodput   simulated"]
    for name, row in report["intervals"].items():
        steps = "-" if row["steps"] is None else f"{row['steps']:.1f}"
        job = row["simulated"]
        simulated = f"{100 * job['goodput']:.2f} +- {100 * job['standard_error']:.2f}%"
        text = f"{name:8}{row['interval_s']:12.5g}{steps:>10}{100 * row['goodput']:9.2f}%"
        lines.append(f"{text}   {simulated}")
    best = report["intervals"]["best"]["simulated"]
    parts = ("goodput", "straggling", "saving", "restarting", "lost")
    spent = ", ".join(f"{part} {100 * best[part]:.2f}%" for part in parts if best[part])
    lines += ["", f"simulated at best: {spent}"]
    num_steps, per_epoch = report["checkpoint_every_steps"], report["steps_per_epoch"]
    if num_steps is None:
        return "\n".join([*lines, "give --step-s SECONDS to get the interval in steps"])
    if per_epoch is not None and per_epoch < num_steps:
        lines.append(
            f"the trainer also saves at the end of each epoch, here every {per_epoch} steps"
        )
    return "\n".join([*lines, f"--checkpoint-every-steps {num_steps}"])


def draw(
    args: argparse.Namespace, costs: Costs, step_s: float | None, stragglers: Stragglers | None
) -> None:
    """Draw the requested pictures.

    Raises:
        ValueError: if matplotlib or the folder is missing, or the file type is unknown.
    """
    if args.plot is None and args.limits is None:
        return
    try:
        from rehearsal.evidence.cadence_pictures import interval_picture, limits_picture

        if args.plot is not None:
            figure = interval_picture(costs, step_s=step_s, stragglers=stragglers)
            figure.savefig(args.plot, dpi=100)
        if args.limits is not None:
            limits_picture(costs.save_s, costs.restart_s).savefig(args.limits, dpi=100)
    except ImportError as error:
        text = "drawing needs matplotlib. Run: pip install -e '.[notebooks]'"
        raise ValueError(f"{error}: {text}") from None
    except (OSError, ValueError) as error:
        text = "Name a file such as cadence.png in an existing folder"
        raise ValueError(f"the picture could not be drawn: {error}. {text}.") from None


def main(arguments: list[str] | None = None) -> int:
    """Print the best interval and its goodput; returns the exit code."""
    args = parse(arguments)
    try:
        costs, step_s, stragglers = resolve(args)
        report = examine(costs, step_s, stragglers)
        report["steps_per_epoch"] = read_config(args.run_dir)[1] if args.run_dir else None
        print(json.dumps(report) if args.json else format_report(report))
        draw(args, costs, step_s, stragglers)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

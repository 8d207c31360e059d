"""The fault matrix: break the trainer in every way we know, and audit every run.

    python scripts/faults.py --quick                  a few tries of each fault, for CI
    python scripts/faults.py --only points --seed 3   every try of one group

Prints the table, what was skipped and why, and every try that the run did not survive. Exits
with 0 only if the runs survived every try, and every group made a try or says why it couldn't.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rehearsal.faults.matrix import Bench, Row, Try, rows_of
from rehearsal.faults.registry import GROUPS

COLUMNS = ("fault", "tries", "survived", "skipped", "lost", "repeated", "replayed", "restart s")


def format_table(rows: Sequence[Row]) -> str:
    """The rows under their headings, with numbers right-aligned."""
    cells = [COLUMNS] + [
        (
            row.fault,
            f"{row.tries}",
            f"{row.survived}",
            f"{row.skipped or ''}",
            f"{row.lost}",
            f"{row.repeated}",
            f"{row.replayed_steps}",
            "" if row.restart_s is None else f"{row.restart_s:.2f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])])
        for first, *rest in cells
    )


def run_groups(names: Sequence[str], bench: Bench) -> dict[str, list[Try]]:
    """Run the groups one after the other, and print a line for each."""
    tries: dict[str, list[Try]] = {}
    for name in names:
        began = time.monotonic()
        print(f"{name:16}", end="", flush=True)
        tries[name] = []
        try:
            for each in GROUPS[name](bench):
                tries[name].append(each)
        except Exception:  # the other groups still run
            problem = f"{traceback.format_exc()}; the run folders are in {bench.root}"
            tries[name].append(Try(name, "the group itself", problem))
        if not tries[name]:
            tries[name].append(Try(name, "the group itself", "nothing tried, nothing skipped"))
        skipped = sum(bool(each.skipped) for each in tries[name])
        bad = sum(bool(each.problem) for each in tries[name])
        print(
            f"{len(tries[name]) - skipped} tries, {bad} not survived, {skipped} skipped, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    return tries


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few tries of each fault")
    parser.add_argument("--seed", type=int, default=0, help="for random choices (default: 0)")
    parser.add_argument("--only", metavar="GROUP,...", help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every try to FILE")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(GROUPS)
    if unknown := [name for name in names if name not in GROUPS]:
        parser.error(f"--only {unknown[0]}: no such group. Choose from {', '.join(GROUPS)}.")
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    by_group = run_groups(names, Bench(root, options.seed, options.quick))
    tries = [each for group in by_group.values() for each in group]
    rows = rows_of(tries)
    print(f"\n{format_table(rows)}")
    for reason in sorted({f"{each.fault}: {each.skipped}" for each in tries if each.skipped}):
        print(f"SKIPPED {reason}")
    for name, group in by_group.items():
        again = f"python scripts/faults.py --only {name} --seed {options.seed}"
        again += " --quick" if options.quick else ""
        for each in group:
            if each.problem:
                print(f"NOT SURVIVED {each.fault}: {each.what}: {each.problem}; again: {again}")
    if options.json:
        content = {"seed": options.seed, "quick": options.quick}
        content |= {"rows": [row._asdict() for row in rows]}
        content |= {"tries": {n: [each._asdict() for each in g] for n, g in by_group.items()}}
        options.json.write_text(json.dumps(content, indent=1))
    is_survived = not any(each.problem for each in tries)
    if is_survived:
        shutil.rmtree(root)
    return 0 if is_survived else 1


if __name__ == "__main__":
    sys.exit(main())

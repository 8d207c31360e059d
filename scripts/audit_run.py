"""Prove or refute from a run folder that each sample was trained exactly once.

    python scripts/audit_run.py RUN [--json] [--plot FILE] [--goodput FILE]
    python scripts/audit_run.py RUN --against OTHER [--json]

Exit code 0: proved; 1: refuted; 2: no evidence, or a wrong call. With --against the two runs
are compared instead, step by step: 0 equal, 1 different, 2 no evidence.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.evidence.audit import AuditReport, audit_run
from rehearsal.evidence.goodput import Account, account_run
from rehearsal.evidence.goodput_picture import format_account, goodput_picture
from rehearsal.evidence.pictures import sample_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXIT_CODES = {"proved": 0, "refuted": 1, "no_evidence": 2, "equal": 0, "different": 1}


def read_account(run_dir: Path) -> Account | None:
    """Where the run's time went; None without any times."""
    try:
        return account_run(run_dir)
    except ValueError:
        return None


def as_json(account: Account) -> dict[str, Any]:
    """An account but for its spans, of which there are several a step."""
    names = [spec.name for spec in fields(Account) if spec.name != "spans"]
    return {name: getattr(account, name) for name in names}


def format_report(report: AuditReport, account: Account | None) -> str:
    """The report as an aligned table, its findings and notes, and the verdict as last line."""
    lines = []
    if report.status != "no_evidence":
        goodput = "unknown" if report.goodput is None else f"{100 * report.goodput:.1f} %"
        times = f"{report.useful_s:.1f} of {report.wall_s:.1f} s in useful steps; "
        times += f"{report.between_attempts_s:.1f} s between attempts"
        table = {
            "epochs": f"{report.epochs}",
            "steps": f"{report.steps} of {report.total_steps}",
            "duplicates": f"{report.duplicates}",
            "misses": f"{report.misses}",
            "wrong lines": f"{report.wrong_lines}",
            "incomplete steps": f"{report.incomplete_steps}",
            "replayed steps": f"{report.replayed_steps}",
            "attempts": f"{report.attempts}",
            "goodput": f"{goodput} ({times})",
        }
        lines += [f"{name:18}{value}" for name, value in table.items()]
        if account:
            lines += [f"wall time         {account.wall_s:10.1f} s, of which"]
            lines += [f"  {line}" for line in format_account(account)]
        notes = report.notes + (account.notes if account else [])
        lines += [f"note              {note}" for note in notes]
        lines += [f"finding           {finding}" for finding in report.findings]
    return "\n".join([*lines, f"{report.status.replace('_', ' ')}: {report.verdict}"])


def draw(flag: str, file: Path, picture: Callable[[], Figure]) -> str | None:
    """Draw a picture into ``file``; returns what went wrong, if anything did."""
    try:
        picture().savefig(file, dpi=100)
    except ImportError as error:
        return f"{error}: {flag} draws with matplotlib. Run: pip install -e '.[notebooks]'"
    except (OSError, ValueError) as error:
        return f"{flag} {file}: {error}. Name a file such as map.png in a folder that exists."
    return None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="folder given to launch.py --run-dir")
    add("--json", action="store_true", help="print one JSON object instead")
    add("--plot", type=Path, metavar="FILE", help="draw the sample map (png, svg)")
    add("--goodput", type=Path, metavar="FILE", help="draw where the time went (png, svg)")
    add("--against", type=Path, metavar="OTHER", help="name the first step that differs there")
    args = parser.parse_args(arguments)
    if args.against and (args.plot or args.goodput):
        parser.error("--against compares and draws nothing: leave out --plot and --goodput")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Audit or compare what the command line names; returns the exit code."""
    args = parse(arguments)
    if args.against:
        from rehearsal.evidence.compare import (
            compare_runs,
            format_comparison,
        )  # imports torch: seconds

        comparison = compare_runs(args.run, args.against)
        text = json.dumps(asdict(comparison)) if args.json else format_comparison(comparison)
        print(text)
        return EXIT_CODES[comparison.status]
    report, account = audit_run(args.run), read_account(args.run)
    if args.json:
        told = {"account": as_json(account) if account else None}
        print(json.dumps(asdict(report) | told))
    else:
        print(format_report(report, account))
    problems = []
    if args.plot and report.status != "no_evidence":
        problems.append(draw("--plot", args.plot, lambda: sample_map(args.run)))
    if args.goodput and account:
        problems.append(draw("--goodput", args.goodput, lambda: goodput_picture(account)))
    elif args.goodput:
        text = (
            f"no log or ledger in {args.run} says when anything happened, so nothing is drawn"
        )
        problems.append(f"--goodput {args.goodput}: {text}. Leave out --goodput for this run.")
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 2 if any(problems) else EXIT_CODES[report.status]


if __name__ == "__main__":
    sys.exit(main())

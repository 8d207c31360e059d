"""Prove or refute, from a run folder alone, that each sample was trained exactly once.

    python scripts/audit_run.py RUN [--json] [--plot FILE] [--goodput FILE]
    python scripts/audit_run.py RUN --against OTHER [--json]

Exit codes: 0 proved, 1 refuted, 2 no evidence or a usage error. --against compares two runs
step by step instead: 0 equal, 1 different, 2 no evidence.
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
    """Where the run's time went; None if the folder has no timestamps."""
    try:
        return account_run(run_dir)
    except ValueError:
        return None


def as_json(account: Account) -> dict[str, Any]:
    """An account without its spans, of which there are several per step."""
    names = [spec.name for spec in fields(Account) if spec.name != "spans"]
    return {name: getattr(account, name) for name in names}


def format_report(report: AuditReport, account: Account | None) -> str:
    """The report as an aligned table, then notes and findings, with the verdict last."""
    lines = []
    if report.status != "no_evidence":
        goodput = "unknown" if report.goodput is None else f"{100 * report.goodput:.1f}%"
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
            lines += [f"wall time         {account.wall_s:10.1f} s, made up of"]
            lines += [f"  {line}" for line in format_account(account)]
        notes = report.notes + (account.notes if account else [])
        lines += [f"note              {note}" for note in notes]
        lines += [f"finding           {finding}" for finding in report.findings]
    return "\n".join([*lines, f"{report.status.replace('_', ' ')}: {report.verdict}"])


def draw(flag: str, file: Path, picture: Callable[[], Figure]) -> str | None:
    """Draw a picture to ``file``; returns an error message if that failed."""
    try:
        picture().savefig(file, dpi=100)
    except ImportError as error:
        return f"{error}: {flag} needs matplotlib. Run: pip install -e '.[notebooks]'"
    except (OSError, ValueError) as error:
        return f"{flag} {file}: {error}. Name a file such as map.png in an existing folder."
    return None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder you gave launch.py as --run-dir")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--plot", type=Path, metavar="FILE", help="draw the sample map (.png, .svg)")
    add("--goodput", type=Path, metavar="FILE", help="draw where the time went (.png, .svg)")
    text = "compare with another run and name the first step that differs"
    add("--against", type=Path, metavar="OTHER", help=text)
    args = parser.parse_args(arguments)
    if args.against and (args.plot or args.goodput):
        parser.error("--against compares two runs and draws nothing: drop --plot and --goodput")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Audit a run, or compare two; returns the exit code."""
    args = parse(arguments)
    if args.against:
        # Imported only here: it imports torch, which takes seconds.
        from rehearsal.evidence.compare import compare_runs, format_comparison

        comparison = compare_runs(args.run, args.against)
        text = json.dumps(asdict(comparison)) if args.json else format_comparison(comparison)
        print(text)
        return EXIT_CODES[comparison.status]
    report, account = audit_run(args.run), read_account(args.run)
    if args.json:
        times = {"account": as_json(account) if account else None}
        print(json.dumps(asdict(report) | times))
    else:
        print(format_report(report, account))
    problems = []
    if args.plot and report.status != "no_evidence":
        problems.append(draw("--plot", args.plot, lambda: sample_map(args.run)))
    if args.goodput and account:
        problems.append(draw("--goodput", args.goodput, lambda: goodput_picture(account)))
    elif args.goodput:
        text = (
            f"{args.run} has no timestamps in its logs or ledger, so there is nothing to draw"
        )
        problems.append(f"--goodput {args.goodput}: {text}. Drop --goodput for this run.")
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 2 if any(problems) else EXIT_CODES[report.status]


if __name__ == "__main__":
    sys.exit(main())

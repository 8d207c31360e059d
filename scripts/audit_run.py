"""Prove or refute, from a run folder alone, that each sample was trained exactly once.

    python scripts/audit_run.py RUN [--json] [--plot FILE] [--goodput FILE]
    python scripts/audit_run.py RUN --against OTHER [--json]

Exit codes: 0 proved, 1 refuted, 2 if there is no evidence or the audit could not be completed;
one line then says why. --against compares two runs step by step instead: 0 equal, 1 different,
2 as above.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from rehearsal.evidence.audit import AuditReport, audit_run
    from rehearsal.evidence.goodput import Account, account_run
    from rehearsal.evidence.goodput_picture import format_account, goodput_picture
    from rehearsal.evidence.pictures import sample_map
except Exception as error:  # an uncaught one exits with 1, which means refuted
    print(f"audit_run.py: {error}. Run it with .venv/bin/python.", file=sys.stderr)
    sys.exit(2)

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
    text = "compare with another run and name the first step at which they differ"
    add("--against", type=Path, metavar="OTHER", help=text)
    args = parser.parse_args(arguments)
    if args.against and (args.plot or args.goodput):
        parser.error("--against compares two runs and draws nothing: drop --plot and --goodput")
    return args


def audit(args: argparse.Namespace) -> tuple[int, str, list[str]]:
    """Audit a run, or compare two: the exit code, the result, and what could not be drawn."""
    if args.against:
        # Imported only here: it imports torch, which takes seconds.
        from rehearsal.evidence.compare import compare_runs, format_comparison

        comparison = compare_runs(args.run, args.against)
        text = json.dumps(asdict(comparison)) if args.json else format_comparison(comparison)
        return EXIT_CODES[comparison.status], text, []
    report = audit_run(args.run)
    account = None if report.status == "no_evidence" else read_account(args.run)
    if args.json:
        times = {"account": as_json(account) if account else None}
        text = json.dumps(asdict(report) | times)
    else:
        text = format_report(report, account)
    problems = []
    if args.plot and report.status != "no_evidence":
        problems.append(draw("--plot", args.plot, lambda: sample_map(args.run)))
    if args.goodput and account:
        problems.append(draw("--goodput", args.goodput, lambda: goodput_picture(account)))
    elif args.goodput:
        missing = f"{args.run} has no timestamps in its logs or ledger, so there is nothing"
        problems.append(
            f"--goodput {args.goodput}: {missing} to draw. Drop --goodput for this run."
        )
    texts = [problem for problem in problems if problem]
    return 2 if texts else EXIT_CODES[report.status], text, texts


def complain(text: str) -> None:
    """Print one line to stderr, if there is one that takes it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:  # print would take None for stdout
            print(" ".join(text.split()), file=sys.stderr, flush=True)


def deliver(text: str) -> None:
    """Print the result.

    Raises:
        OSError: stdout is full or closed.
    """
    if sys.stdout is None:
        raise OSError("stdout is closed")
    if isinstance(sys.stdout, TextIOWrapper):  # a path may hold bytes that no encoding has
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter would write what is left in the buffer at exit, and exit with 120.
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise OSError(f"stdout does not take the result ({error})") from error


def main(arguments: list[str] | None = None) -> int:
    """Audit a run, or compare two; prints the result and returns the exit code.

    Whatever keeps the audit from being made is a 2, because a 1 means that the run is refuted.
    """
    args = parse(arguments)
    try:
        code, text, problems = audit(args)
        deliver(text)
    except (Exception, KeyboardInterrupt) as error:
        what = f"{error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        complain(f"audit_run.py: {args.run}: the audit could not be completed: {what}")
        return 2
    for problem in problems:
        complain(problem)
    return code


if __name__ == "__main__":
    sys.exit(main())

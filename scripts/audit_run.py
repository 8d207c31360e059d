"""Prove or refute from a run folder that each sample was trained exactly once.

    python scripts/audit_run.py RUN [--json] [--plot FILE]

Exit code 0: proved; 1: refuted; 2: no evidence, or a wrong call.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rehearsal.audit import AuditReport, audit_run

EXIT_CODES = {"proved": 0, "refuted": 1, "no_evidence": 2}


def format_report(report: AuditReport) -> str:
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
        lines += [f"note              {note}" for note in report.notes]
        lines += [f"finding           {finding}" for finding in report.findings]
    return "\n".join([*lines, f"{report.status.replace('_', ' ')}: {report.verdict}"])


def draw(run_dir: Path, file: Path) -> str | None:
    """Draw the sample map into ``file``; returns what went wrong, if anything did."""
    try:
        from rehearsal.pictures import sample_map

        sample_map(run_dir).savefig(file, dpi=100)
    except ImportError as error:
        return f"{error}: --plot draws with matplotlib. Run: pip install -e '.[notebooks]'"
    except (OSError, ValueError) as error:
        return f"--plot {file}: {error}. Name a file such as map.png in a folder that exists."
    return None


def main(arguments: list[str] | None = None) -> int:
    """Audit the run folder that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder given to launch.py --run-dir"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the sample map (png, svg)"
    )
    args = parser.parse_args(arguments)
    report = audit_run(args.run)
    print(json.dumps(asdict(report)) if args.json else format_report(report))
    if args.plot and report.status != "no_evidence" and (problem := draw(args.run, args.plot)):
        print(problem, file=sys.stderr)
        return 2
    return EXIT_CODES[report.status]


if __name__ == "__main__":
    sys.exit(main())

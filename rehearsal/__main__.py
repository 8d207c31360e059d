"""The coach at a terminal, for people who prefer an editor: python -m rehearsal --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rehearsal import drills, forget
from rehearsal.grading.drill import UnknownDrill, load
from rehearsal.grading import drills_page, selftest
from rehearsal.session import coach
from rehearsal.session.frontend import spelled_for_a_shell

OF_A_DRILL = {
    "brief": (coach.brief, "what is asked"),
    "start": (coach.start, "the same, and the clock begins"),
    "hint": (coach.hint, "the next of three"),
    "narration": (coach.narration, "what to say while typing it"),
    "diff": (coach.diff, "what changed between the last two attempts"),
}
PLAIN = {
    "status": (coach.status, "what has passed, what is due, what to do next"),
    "debrief": (coach.debrief, "the last timed run: pace and findings"),
    "forget": (forget, "delete the history of your rehearsals"),
}


class Unreadable(Exception):
    """A file or folder that the person who called can put there."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m rehearsal",
        description="Rehearse: list, start DRILL, blank DRILL > attempt.py, edit, "
        "check DRILL attempt.py.",
        epilog="Exit codes: 0 passed, or done; 1 not passed; 2 what you can mend.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="all drills")
    checking = commands.add_parser("check", help="run a file on real ranks, and judge it")
    checking.add_argument("drill")
    checking.add_argument("file", type=Path)
    for name, (_, text) in OF_A_DRILL.items():
        commands.add_parser(name, help=text).add_argument("drill")
    commands.add_parser("blank", help="print what to start from").add_argument("drill")
    opening = commands.add_parser("solution", help="opens after a pass")
    opening.add_argument("drill")
    opening.add_argument("--give-up", action="store_true", help="open it without a pass")
    for name, (_, text) in PLAIN.items():
        commands.add_parser(name, help=text)
    testing = commands.add_parser("selftest", help="grade the graders")
    testing.add_argument("drill", nargs="*", help="all, if none is named")
    commands.add_parser("docs", help="write docs/drills.md")
    return top


def show_list() -> None:
    """One line per drill."""
    rows = [(drill.id, f"{drill.minutes:g} min", drill.kind, drill.title) for drill in drills()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True)]
        print("   ".join(cells))


def check(drill: str, file: Path) -> int:
    """Judge a file; 0 if it passed.

    Raises:
        Unreadable: if it is no file of text.
    """
    load(drill)  # an unknown drill is said before a missing file
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"{file} cannot be read ({error}). A check takes a file of Python text; "
            f"begin one with: python -m rehearsal blank {drill} > attempt.py"
        ) from None
    return 0 if coach.check_text(drill, text, str(file)).status == "passed" else 1


def run_selftest(names: Sequence[str]) -> int:
    """Judge all texts of the named drills, or of all; print what is not as it must be."""
    bad = 0
    for drill in [load(name) for name in names] or drills():
        rows = list(selftest.run(drill))
        wrong = [row for row in rows if not row.ok]
        bad += len(wrong)
        seconds = sorted(row.verdict.seconds for row in rows if row.kind == "solution")
        score = f"{len(rows) - len(wrong)} of {len(rows)} as they must be"
        print(f"{drill.id}: {score}; a solution takes {seconds[len(seconds) // 2]:.2f} s")
        for row in wrong:
            print(f"  {row.kind} {row.name}: expected {row.expected}, got {row.got}")
            print("    " + str(row.verdict).replace("\n", "\n    "))
    return 1 if bad else 0


def obey(options: argparse.Namespace) -> int:
    """Do what was asked for; returns the exit code."""
    if options.command == "check":
        return check(options.drill, options.file)
    if options.command == "selftest":
        return run_selftest(options.drill)
    if options.command == "docs":
        if not drills_page.PATH.parent.is_dir():
            raise Unreadable(
                f"{drills_page.PATH.parent} does not exist: the page belongs to a copy of the "
                "project. Run this in a clone, installed by make setup."
            )
        return 0 if drills_page.write(drills(), print) else 1
    if options.command in OF_A_DRILL:
        OF_A_DRILL[options.command][0](options.drill)
    elif options.command in PLAIN:
        PLAIN[options.command][0]()
    elif options.command == "blank":
        print(load(options.drill).blank, end="")
    elif options.command == "solution":
        coach.solution(options.drill, give_up=options.give_up)
    else:
        show_list()
    return 0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code; what a person can mend is one message and 2."""
    try:
        with spelled_for_a_shell():
            return obey(parser().parse_args(arguments))
    except (UnknownDrill, Unreadable) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the ranks print during a check: kept until the verdict is shown, then folded."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Sequence

from rehearsal.engine.output import OUTPUT_SHOWN
from rehearsal.grading.verdict import Verdict
from rehearsal.session.display import has_front_end, show
from rehearsal.session.terminal import file_checked, is_command, program

SHOWN = 10  # lines; the others are folded
KEPT = 1000  # lines; a loop that prints would fill the notebook
MOST = f"up to {OUTPUT_SHOWN} lines of each rank in each job, {KEPT} in all"
OF_A_RANK = re.compile(r"\[\d+\] ")  # how the engine begins each line that a rank prints


class Prints:
    """Keeps what the ranks print, so that the verdict comes first."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.num_lines = 0

    def add(self, line: str) -> None:
        """Keep a rank's line. Anything else says why the check takes long: show it now."""
        if not OF_A_RANK.match(line):
            print(line, flush=True)
            return
        self.num_lines += 1
        if self.num_lines <= KEPT:
            self.lines.append(line)

    def show(self, verdict: Verdict | None, *, shows_all: bool = False) -> None:
        """Show the first lines; the rest folded in a notebook, and counted at a terminal.

        Args:
            verdict: how the check ended; None if it was interrupted.
            shows_all: fold nothing.
        """
        if not self.lines:
            return
        lines, head = self.lines, "Your code printed:"
        if dropped := self.num_lines - len(lines):
            lines = [*lines, f"({dropped} more lines; only the first {KEPT} are kept)"]
        if has_front_end():
            most = len(lines) if shows_all else SHOWN
            rich = {"text/html": folded(head, lines, most)}
            show("\n".join([head, *lines]), rich, is_code=True)
            return
        hidden = 0 if shows_all or verdict is None else len(lines) - SHOWN
        if verdict is not None and hidden > 0:
            more = "1 more line" if hidden == 1 else f"{hidden} more lines"
            lines = [*lines[:SHOWN], f"({more}. To see them: {repeated(verdict)})"]
        show("\n".join([head, *lines]), is_code=True)


def folded(head: str, lines: Sequence[str], most: int = SHOWN) -> str:
    """HTML of the lines; those beyond ``most`` open with a click."""

    def block(part: Sequence[str]) -> str:
        return f'<pre style="margin:0">{html.escape(chr(10).join(part))}</pre>'

    first, rest = lines[:most], lines[most:]
    more = "1 more line" if len(rest) == 1 else f"{len(rest)} more lines"
    fold = f"<details><summary>{more}</summary>{block(rest)}</details>" if rest else ""
    return (
        f'<div><span style="opacity:.75">{html.escape(head)}</span>{block(first)}{fold}</div>'
    )


def repeated(verdict: Verdict) -> str:
    """How to run the same check again with nothing folded."""
    seed = verdict.seed
    if not is_command():
        arguments = [
            f'"{verdict.drill}"',
            f"seed={seed}" if seed is not None else "",
            "prints=True",
        ]
        return f"check({', '.join(filter(None, arguments))})"
    seed_flag = f"--seed {seed}" if seed is not None else ""
    words = [
        program(),
        "check",
        verdict.drill,
        shlex.quote(file_checked()),
        seed_flag,
        "--prints",
    ]
    return " ".join(filter(None, words))

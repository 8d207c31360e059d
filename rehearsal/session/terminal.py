"""The coach's words as a terminal shows them: advice as commands, Markdown as plain text."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

CALL = re.compile(
    r"`?(?<![\w.])(?:rehearsal\.)?"
    r"(start|check|hint|solution|narration|diff|status|debrief|ask|topics)"
    r"\((?:\"(\w+)\"(?:, \"(solution)\"|, (give_up)=True)?|([A-Z]+)|topic=\"(\w+)\")?\)`?"
)
COMMANDS = {"topics": "cards"}  # where the command has another name than the call
FILE = "attempt.py"  # where the README has you type
_file: str | None = None  # what a running command checks; None if no command runs


def is_command() -> bool:
    """Whether a command at a terminal is running, after which this process ends."""
    return _file is not None


@contextlib.contextmanager
def spelled_for_a_shell(file: str = FILE) -> Iterator[None]:
    """Inside, advice such as ``hint("x")`` is printed as the command to type.

    Args:
        file: what a ``check`` in such advice checks.
    """
    global _file
    _file = file
    try:
        yield
    finally:
        _file = None


def file_checked() -> str:
    """The file that advice about a check names."""
    return _file or FILE


def program() -> str:
    """What starts this program from the current folder: "python -m rehearsal"."""
    python = Path(sys.executable)
    found = shutil.which(python.name)
    if found and Path(found).absolute() == python:
        return f"{python.name} -m rehearsal"
    near = os.path.relpath(python)
    if near.startswith(os.pardir):
        near = str(python)
    return f"{shlex.quote(near if os.sep in near else os.path.join('.', near))} -m rehearsal"


def spelled(text: str) -> str:
    """The text, with calls spelled as commands while one is running."""
    return CALL.sub(_command, text) if is_command() else text


def _command(call: re.Match[str]) -> str:
    name, named, solution, gives_up, placeholder, topic = call.groups(default="")
    file = shlex.quote(file_checked()) if name == "check" else ""
    options = [gives_up and "--give-up", topic and f"--topic {topic}"]
    words = [COMMANDS.get(name, name), named or placeholder, file, solution, *options]
    return " ".join([program(), *filter(None, words)])


def plain(markdown: str) -> str:
    """Markdown as a terminal shows it: code indented, tables aligned, no stars or hashes.

    Line breaks stay where they are; only tables and code change their width.
    """
    shown: list[str] = []
    table: list[str] = []
    is_code = False
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|") and not is_code:
            table.append(line)
            continue
        shown += _aligned(table)
        table.clear()
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            shown.append(f"    {line}".rstrip())
        else:
            shown.append(_without_bold(re.sub(r"^#+ ", "", line)))
    return "\n".join(shown).rstrip("\n")


def _without_bold(line: str) -> str:
    """The line without the stars around bold words. Code in backticks keeps its stars."""
    return re.sub(r"(`[^`]*`)|\*\*(.+?)\*\*", lambda m: m[1] or m[2], line)


def _aligned(rows: Sequence[str]) -> list[str]:
    """The lines of a Markdown table, its columns aligned."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    rules = [all(cell and set(cell) <= {*"-:"} for cell in row) for row in cells]
    columns = zip_longest(*(row for row, rule in zip(cells, rules, strict=True) if not rule))
    widths = [max(len(cell or "") for cell in column) for column in columns]
    lines = []
    for row, rule in zip(cells, rules, strict=True):
        words = ["-" * width for width in widths] if rule else row
        lines.append("   ".join(w.ljust(n) for w, n in zip(words, widths, strict=False)))
    return [line.rstrip() for line in lines]

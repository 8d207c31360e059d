"""The coach's words as a terminal shows them: advice as commands, Markdown as plain text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

CALL = re.compile(
    r"`?(?<![\w.])(start|check|hint|solution|narration|diff|status|debrief)"
    r"\((?:\"(\w+)\"(, give_up=True)?)?\)`?"
)
_is_command = False


def is_command() -> bool:
    """Whether a command at a terminal is running, after which this process ends."""
    return _is_command


@contextlib.contextmanager
def spelled_for_a_shell() -> Iterator[None]:
    """Inside, advice such as ``hint("x")`` is printed as the command to type."""
    global _is_command
    _is_command = True
    try:
        yield
    finally:
        _is_command = False


def spelled(text: str) -> str:
    """The text, with calls spelled as commands while one is running."""
    return CALL.sub(_command, text) if _is_command else text


def _command(call: re.Match[str]) -> str:
    name, drill, more = call.groups(default="")
    words = [name, drill, "FILE" if name == "check" else "", more and "--give-up"]
    return " ".join(["python -m rehearsal", *filter(None, words)])


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

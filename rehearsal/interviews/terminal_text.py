"""How an interview reads at a terminal: in lines, and with commands instead of calls."""

from __future__ import annotations

import re
import shutil
import textwrap

from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import Entry
from rehearsal.session.terminal import program

WIDEST = 88


def named(interview: Interview) -> str:
    """The names that the graders call, each with its arguments."""
    called = "\n".join(f"    {name}{takes}" for name, takes in interview.names.items())
    return f"The graders call these names, as far as you define them:\n{called}"


def in_lines(entry: Entry) -> str:
    """An entry, as wide as the terminal."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    if entry.who == "note":
        return textwrap.fill(f"[{entry.text}]", width)
    who = "Interviewer: " if entry.who == "interviewer" else "You: "
    if entry.is_table:
        return f"\n{who}\n{entry.text}\n"
    paragraphs = (textwrap.fill(text, width) for text in f"{who}{entry.text}".split("\n"))
    return "\n" + "\n".join(paragraphs) + "\n"


def spelled(text: str) -> str:
    """What the library says about calls, as it's typed here."""
    text = text.replace('interview(..., mode="study") has them', "--mode study has them")
    text = re.sub(r"\bscorecard\(\)", "/status", text)
    return re.sub(r'\b(end|resume|pause|hint|export)\((?:"([^"]*)")?\)', _command, text)


def as_commands(text: str) -> str:
    """A scorecard's advice, or what a message says to do, as it's typed at a shell."""
    text = re.sub(
        r"\brehearsal\.interview\(([\d.]+), seed=(\d+)\)",
        rf"{program()} interview --minutes \1 --seed \2",
        text,
    )
    text = re.sub(r"\brehearsal\.interview\(\)", f"{program()} interview", text)
    text = re.sub(r'\bask\(topic="(\w+)"\)', rf"{program()} ask --topic \1", text)
    return re.sub(r'\b(ask|start)\("(\w+)"\)', rf"{program()} \1 \2", text)


def _command(call: re.Match[str]) -> str:
    return " ".join(filter(None, [f"/{call[1]}", call[2]]))

"""The interviewer's side at a terminal: the transcript exchange by exchange, then the form."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rehearsal.interviews.form import Interviewer
from rehearsal.interviews.rubric import MARKS, ROWS
from rehearsal.interviews.store import BadInterview


class Ended(Exception):
    """The input has ended."""


def run(reading: Interviewer) -> None:
    """Show the transcript, ask for each row, compare. Without all marks, nothing is kept."""
    try:
        _read(reading)
        while reading.unmarked:
            _ask(reading, reading.unmarked[0])
    except Ended:
        left = ", ".join(reading.unmarked)
        print(f"\nThe form isn't complete, so nothing was kept. Not marked: {left}.")
        return
    print(f"\n{reading.compare()}")


def _read(reading: Interviewer) -> None:
    print(repr(reading).splitlines()[0])
    print("You're the interviewer. Enter shows the next exchange, all shows the rest.")
    shows_all = False
    while (part := reading.step()) is not None:
        print(part)
        if not shows_all:
            shows_all = _asked("").lower().startswith("a")


def _ask(reading: Interviewer, row: str) -> None:
    words = ", ".join(f"{n} {word}" for n, word in MARKS.items())
    print(f"\n{ROWS[row].name}. {ROWS[row].earns}")
    said = _asked(f"{words}: ")
    try:
        number = int(said) if said.isdigit() else 0
        reading.mark(row, number, because="")
    except BadInterview:
        print(f"Type a number: {words}.")
        return
    reading.mark(row, number, because=_asked("Because: "))


def _asked(prompt: str, read: Callable[[], str] | None = None) -> str:
    print(prompt, end="", flush=True)
    line = (read or sys.stdin.readline)()
    if not line:
        raise Ended
    if not sys.stdin.isatty() and prompt:
        print()
    return line.strip()

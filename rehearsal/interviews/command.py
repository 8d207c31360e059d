"""The commands about interviews: hold one, list, show, replay and compare them, or mark one.

python -m rehearsal interview --minutes 45 --seed 3 --file attempt.py
python -m rehearsal interviews
python -m rehearsal interviews show 2026-11-23-seed3-1
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
from collections.abc import Sequence
from typing import Any

from rehearsal.interviews import form_terminal
from rehearsal.interviews.files import File
from rehearsal.interviews.form import interviewer
from rehearsal.interviews.opening import interview, unfinished
from rehearsal.interviews.recorded import recorded
from rehearsal.interviews.replay import compare, replay
from rehearsal.interviews.session import Interview
from rehearsal.interviews.stdin import Lines, LinesOf
from rehearsal.interviews.store import BadInterview, Store, stores, unfinished_ones
from rehearsal.interviews.terminal import Room
from rehearsal.interviews.terminal_text import as_commands, in_lines, spelled
from rehearsal.interviews.spoken import entries
from rehearsal.session.terminal import program

DRAWN = range(1, 10_000)  # short enough to type
LONGEST_WAIT_S = 3600.0
MOST_REPEATED = 3  # of what was said, when somebody comes back


def obey(options: argparse.Namespace) -> None:
    """Do what ``interviews`` was asked for.

    Raises:
        BadInterview: if there is no such interview, or it can't be shown.
    """
    if options.what == "show":
        show(options.name)
    elif options.what == "replay":
        replay(*[options.name] * (options.name is not None), speed=options.speed)
    elif options.what == "compare":
        print(compare(*options.name))
    else:
        show_all()


def mark(options: argparse.Namespace) -> None:
    """Mark a recorded interview, row by row.

    Raises:
        BadInterview: if there is no such interview, or it can't be read.
    """
    form_terminal.run(interviewer(options.name))


def hold(options: argparse.Namespace) -> None:
    """Hold an interview at this terminal.

    Raises:
        BadInterview: if a value isn't possible, or the session can't be continued.
    """
    lines = LinesOf(sys.stdin.fileno())
    file = None if options.file is None else File(options.file)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    person = lines if is_terminal else None
    session = begun(options.minutes, options.seed, options.mode, person, options.setting)
    print(
        "What you type is said once you press Enter on an empty line. /help lists the commands."
    )
    if file is not None:
        print(f"{options.file} is handed in each time you save it.")
    Room(session, lines, file=file, is_terminal=is_terminal).hold()


def begun(
    minutes: float, seed: int | None, mode: Any, lines: Lines | None, setting: Any = None
) -> Interview:
    """An interview: the one of this seed, the one that is unfinished, or a new one.

    Args:
        lines: of a person, who can be asked; None for a script.

    Raises:
        BadInterview: as ``rehearsal.interview``.
    """
    if seed is None:
        left = next(unfinished_ones(), None)
        if left is not None and wants_to_continue(left, lines):
            seed = int(left.header()["seed"])
        else:
            seed = drawn_seed()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        session = interview(minutes, seed, mode=mode, setting=setting)
    if said.getvalue():
        print(spelled(said.getvalue().rstrip()))
        seen = list(entries(session.events, session.cells, session.mode))
        spoken = [entry for entry in seen if entry.who != "note"]
        print("".join(in_lines(entry) for entry in spoken[-MOST_REPEATED:]))
    else:
        print(
            f"Interview {session.name}: {minutes:g} minutes, {mode} mode, seed {seed}. The "
            "same seed has the same prompt and the same answers about the situation."
        )
    return session


def wants_to_continue(left: Store, lines: Lines | None) -> bool:
    """Whether a person wants to continue it; a script is told how."""
    text = f"The interview {left.name} is {standing_of(left)}."
    if lines is None:
        print(f"{text} {program()} interview --seed {left.header()['seed']} continues it.")
        return False
    print(f"{text} Press Enter to continue it, or type n for a new one: ", end="", flush=True)
    answer = lines.next(LONGEST_WAIT_S)
    if answer is None:
        raise BadInterview("No answer, so nothing was begun.")
    return not answer.strip().lower().startswith("n")


def drawn_seed() -> int:
    """A seed without an unfinished session, which it would continue."""
    drawing = random.SystemRandom()
    while unfinished(seed := drawing.choice(DRAWN)) is not None:
        pass
    return seed


def standing_of(store: Store) -> str:
    """ "78 of 100", or "unfinished at minute 12 of 45"."""
    found = store.scorecard()
    if found is not None and store.has_ended():
        return f"{found['percent']} of 100"
    return f"unfinished at minute {store.spent:.0f} of {store.header()['minutes']:g}"


def show_all() -> None:
    """One line for each session, oldest first."""
    rows = list[Sequence[str]]()
    for store in stores():
        try:
            header = store.header()
            rows.append(
                [store.name, f"{header['minutes']:g} min", header["mode"], standing_of(store)]
            )
        except BadInterview as error:
            rows.append([store.name, "", "", str(error)])
    if not rows:
        print(f"No interview yet. {program()} interview begins one.")
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:3]]
    for *cells, last in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("   ".join([*padded, last]))


def show(name: str) -> None:
    """The scorecard of a session that has ended.

    Raises:
        BadInterview: if there is none, several, or it hasn't ended.
    """
    print(as_commands(str(recorded(name).scorecard())))


def run(options: argparse.Namespace) -> None:
    """Run one of the commands about interviews.

    Raises:
        BadInterview: for a mistake the user can fix; it says what to type at a shell.
    """
    commands = {"interview": hold, "interviews": obey, "interviewer": mark}
    try:
        commands[options.command](options)
    except BadInterview as error:
        raise BadInterview(as_commands(str(error))) from None

"""What a candidate sees of an interview while it runs: what was said, and what was typed.

The terminal and the notebook's panel show the same entries. In real mode, what the graders
found isn't among them: an interviewer's face says nothing about what passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from rehearsal.interviews.built import defined_in
from rehearsal.interviews.store import Event

Who = Literal["interviewer", "you", "note"]
MOST_NAMES = 6  # of a cell, that a note lists


class Entry(NamedTuple):
    """One line of it.

    Args:
        is_table: its columns have to stay below one another.
    """

    minute: float
    who: Who
    text: str
    is_table: bool = False


def entries(events: Sequence[Event], cells: Mapping[str, str], mode: str) -> Iterator[Entry]:
    """The entries of these events, in order.

    Args:
        cells: the text of each cell, by its file's name.
        mode: in "real", the interviewer's face says nothing about what passed.
    """
    passed: list[str] = []
    for event in events:
        minute = event["at"] / 60
        if event["did"] == "line":
            is_table = bool(event.get("sources"))  # what an incident's source shows
            yield Entry(minute, "interviewer", event["text"], is_table)
        elif event["did"] == "say":
            yield Entry(minute, "you", event["text"])
        elif event["did"] == "checked" and mode == "study":
            if event["stages"] != passed or event["status"] in ("crashed", "hung"):
                yield Entry(minute, "note", found_in(event))
            passed = event["stages"]
        elif event["did"] == "checked" and event["status"] != "not checked":
            yield Entry(minute, "note", "The interviewer ran your code.")
        elif note := _note(event, cells):
            yield Entry(minute, "note", note)


def _note(event: Event, cells: Mapping[str, str]) -> str:
    if event["did"] == "type":
        return typed_in(cells.get(event["file"], ""))
    if event["did"] == "take back":
        return (
            f"You took {names_in(cells.get(event['file'], ''))} back: not in its cell anymore."
        )
    return {
        "pause": "Paused.",
        "resume": "Resumed.",
        "hint": "You took a hint.",
        "end": "The interview is over.",
    }.get(event["did"], "")


def typed_in(cell: str) -> str:
    """What was typed, in one line: "You typed TrainConfig and seed_for (31 lines).\""""
    lines = sum(bool(line.strip()) for line in cell.split("\n"))
    return f"You typed {names_in(cell)} ({lines} line{'s' if lines != 1 else ''})."


def names_in(cell: str) -> str:
    """What a cell defines, as a list in words; "a cell" if it has no public name."""
    return listed([name for name in _in_order(cell) if not name.startswith("_")]) or "a cell"


def listed(names: Sequence[str]) -> str:
    """Names as a list in words, a few of them."""
    more = len(names) - MOST_NAMES
    shown = [*names[:MOST_NAMES], f"{more} more"] if more > 1 else names
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _in_order(cell: str) -> Sequence[str]:
    return sorted(defined_in(cell), key=lambda name: cell.find(name))


def found_in(checked: Event) -> str:
    """What the graders found, as study mode shows it."""
    if checked["status"] == "not checked":
        return "Your code couldn't be checked this time. It's checked again with the next cell."
    if checked["drill"] != "live_trainer":
        found = "passes" if checked["status"] == "passed" else "doesn't pass yet"
        return f"{checked['drill']} {found}."
    stages = checked["stages"]
    passing = f"Passing: {', '.join(stages)}." if stages else "No stage passes yet."
    if checked["status"] in ("crashed", "hung"):
        passing += (
            f" Your code {'raises an error' if checked['status'] == 'crashed' else 'hangs'}."
        )
    following = f" Next: {checked['next_stage']}." if checked["next_stage"] else ""
    return passing + following

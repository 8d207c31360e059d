"""A card at a terminal: the question, your answer, the points, your corrections, a grade."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator

from rehearsal.deck.asked import FOUND, GRADES, Asked
from rehearsal.session.history import Grade

MARKS = {"covered": "[x]", "missed": "[ ]", "contradicted": "[!]"}
CORRECTION = re.compile(r"(\d+)\s+([a-z]+)")


def run(asked: Asked) -> None:
    """Ask it. After an answer, the end of the input accepts what is suggested."""
    card = asked.card
    print(f"{card.topic}, {card.level}: {card.id}\n")
    print(textwrap.fill(card.question, 88))
    print("\nSay it aloud, then type the gist, and a line with a dot. To mark the points")
    print("yourself, type only the dot.")
    lines, is_ended = _lines()
    if not (is_ended or any(line.strip() for line in lines)):
        print("\nNo answer, so nothing was recorded.")
        return
    asked.answer("\n".join(lines))
    print("\n".join(points(asked)))
    while correction := _asked(
        "To correct a mark, type for example 2 covered. Press Enter to go on: "
    ):
        _correct(asked, correction)
    print("\n".join(_rest(asked)))
    print(f"\n{asked.card.id}: {asked.grade(_grade(asked))}.")


def _lines() -> tuple[list[str], bool]:
    """The answer's lines, and whether a dot ended them, not the end of the input."""
    lines = list[str]()
    while line := sys.stdin.readline():
        if line.strip() == ".":
            return lines, True
        lines.append(line.rstrip())
    return lines, False


def _asked(prompt: str) -> str:
    print(f"\n{prompt}", end="", flush=True)
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        print()
    return line.strip().lower()


def _correct(asked: Asked, correction: str) -> None:
    found = CORRECTION.fullmatch(correction)
    on_card = asked.card.points
    words = [word for word in FOUND if found and word.startswith(found[2])]
    if not found or not 1 <= int(found[1]) <= len(on_card) or len(words) != 1:
        print(f"Type a point's number, 1 to {len(on_card)}, and {', '.join(FOUND)}.")
        return
    asked.correct(on_card[int(found[1]) - 1].id, words[0])
    print("\n".join(points(asked)))


def _grade(asked: Asked) -> Grade:
    while said := _asked(f"How did it go: {', '.join(GRADES)}? Enter: {asked.suggested}. "):
        for grade in GRADES:
            if grade.startswith(said):
                return grade
        print(f"Type one of {', '.join(GRADES)}.")
    return asked.suggested


def points(asked: Asked) -> Iterator[str]:
    """The points, each with what was found, and the words that decided it."""
    yield ""
    for number, point in enumerate(asked.card.points, 1):
        found = asked.points[point.id]
        yield from _wrapped(f"{MARKS[found]} {number}. ", point.text)
        if asked.is_as_judged(point.id):
            words = asked.because[point.id]
            yield from _wrapped(" " * 7, f'{found}: "{words}"')
    yield "    [x] covered   [ ] missed   [!] contradicted"


def _rest(asked: Asked) -> Iterator[str]:
    """What comes after the points: the answers, and what to do about the card."""
    card = asked.card
    parts = {
        "Strong": card.strong,
        "Weak": f"{card.weak} Why: {card.why_weak}",
        "They ask next": card.follow_up,
        "What would prove you wrong": card.falsifier,
        "Shown in": ", ".join(card.shown_in),
    }
    for name, text in parts.items():
        yield ""
        yield from _wrapped("", f"{name}. {' '.join(text.split())}")


def _wrapped(first: str, text: str) -> list[str]:
    return textwrap.wrap(text, 88, initial_indent=first, subsequent_indent=" " * len(first))

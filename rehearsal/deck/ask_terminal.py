"""A card at a terminal: the question, your answer, the points, your corrections, a grade."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator

from rehearsal.deck.asked import FOUND, GRADES, Asked
from rehearsal.session.history import Grade

MARKS = {"covered": "[x]", "missed": "[ ]", "contradicted": "[!]"}
NOT_MARKED = "[?]"
CORRECTION = re.compile(r"(\d+)\s+([a-z]+)")


def run(asked: Asked) -> None:
    """Ask it. After an answer, the end of the input accepts what is suggested."""
    card = asked.card
    print(f"{card.topic_title}, {card.level}: {card.id}\n")
    print(textwrap.fill(card.question, 88))
    print("\nSay it aloud, then type the gist, and a line with a dot. To mark the points")
    print("yourself, type only the dot.")
    if asked.examiner is not None:
        print("A question mark alone asks a language model to put it in other words.")
    lines, is_ended = _lines(asked)
    if not (is_ended or any(line.strip() for line in lines)):
        print("\nNo answer, so nothing was recorded.")
        return
    asked.answer("\n".join(lines).strip() or None)
    print("\n".join(points(asked)))
    _second_opinion(asked)
    while correction := _asked(
        "To correct a mark, type for example 2 covered. Press Enter to go on: "
    ):
        _correct(asked, correction)
    print("\n".join(_rest(asked)))
    _say("A language model asks", asked.follow_up(), asked.new_problem())
    grade = _grade(asked)
    if grade is None:
        print("\nNo point was marked and no grade was given, so nothing was recorded.")
        return
    print(f"\n{asked.card.id}: {asked.grade(grade)}.")


def _lines(asked: Asked) -> tuple[list[str], bool]:
    """The answer's lines, and whether a dot ended them, not the end of the input."""
    lines = list[str]()
    while line := sys.stdin.readline():
        if line.strip() == ".":
            return lines, True
        if line.strip() == "?" and asked.examiner is not None:
            _say("In other words, by a language model", asked.rephrased(), asked.problem)
        else:
            lines.append(line.rstrip())
    return lines, False


def _say(head: str, said: str | None, problem: str) -> None:
    """Print what the language model says, or else why it says nothing."""
    text = f"{head}. {said}" if said else problem
    if text:
        print("\n" + "\n".join(_wrapped("", text)))


def _second_opinion(asked: Asked) -> None:
    """What the language model finds, below what the matcher found, and apart from it."""
    if asked.examiner is None or not asked.text:
        return
    print("\nAsking a language model for a second opinion.", flush=True)
    opinion = asked.second_opinion()
    if opinion is None:
        print("\n".join(_wrapped("", asked.new_problem())))
        return
    marks = []
    for number, point in enumerate(asked.card.points, 1):
        found = opinion[point.id]
        differs = " (differs)" if found != asked.points[point.id] else ""
        marks.append(f"{MARKS[found]} {number}{differs}")
    print("    " + "   ".join(marks))
    print("    It can be wrong. The marks above stay as they are.")


def _asked(prompt: str) -> str | None:
    """The line that was typed; None at the end of the input."""
    print(f"\n{prompt}", end="", flush=True)
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        print()
    return line.strip().lower() if line else None


def _correct(asked: Asked, correction: str) -> None:
    found = CORRECTION.fullmatch(correction)
    on_card = asked.card.points
    words = [word for word in FOUND if found and word.startswith(found[2])]
    if not found or not 1 <= int(found[1]) <= len(on_card) or len(words) != 1:
        print(f"Type a point's number, 1 to {len(on_card)}, and {', '.join(FOUND)}.")
        return
    asked.correct(on_card[int(found[1]) - 1].id, words[0])
    print("\n".join(points(asked)))


def _grade(asked: Asked) -> Grade | None:
    """The grade that was chosen, or is suggested; None if there is neither."""
    suggested = asked.suggested
    enter = f" Enter: {suggested}." if suggested else ""
    while (said := _asked(f"How did it go: {', '.join(GRADES)}?{enter} ")) is not None:
        if not said and suggested:
            break
        for grade in GRADES:
            if said and grade.startswith(said):
                return grade
        print(f"Type one of {', '.join(GRADES)}.")
    return suggested


def points(asked: Asked) -> Iterator[str]:
    """The points, each with what was found, and the words that decided it."""
    yield ""
    for number, point in enumerate(asked.card.points, 1):
        found = asked.points.get(point.id)
        mark = MARKS[found] if found else NOT_MARKED
        yield from _wrapped(f"{mark} {number}. ", point.text)
        if asked.is_as_judged(point.id):
            words = asked.because[point.id]
            yield from _wrapped(" " * 7, f'{found}: "{words}"')
    not_marked = f"   {NOT_MARKED} not marked" if len(asked.points) < number else ""
    yield f"    [x] covered   [ ] missed   [!] contradicted{not_marked}"


def _rest(asked: Asked) -> Iterator[str]:
    """What comes after the points: the answers, and what to do about the card."""
    card = asked.card
    parts = {
        "Strong": card.strong,
        "Weak": f"{card.weak} Why: {card.why_weak}",
        "They ask next": card.follow_up,
        "What would prove you wrong": card.falsifier,
        "Shown in": "; ".join(card.shown_in),
    }
    for name, text in parts.items():
        yield ""
        yield from _wrapped("", f"{name}. {' '.join(text.split())}")


def _wrapped(first: str, text: str) -> list[str]:
    return textwrap.wrap(text, 88, initial_indent=first, subsequent_indent=" " * len(first))

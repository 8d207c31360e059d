"""A recorded session again: played as it was, or next to others.

rehearsal.replay()                     your newest
rehearsal.replay("strong", speed=60)   a minute a second
rehearsal.compare()                    your newest two
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rehearsal.interviews.recorded import Recorded, newest, read, recorded
from rehearsal.interviews.rubric import ROWS, RUBRIC
from rehearsal.interviews.scorecard import Scorecard
from rehearsal.interviews.store import BadInterview, Event, stores
from rehearsal.interviews.transcript import Moment, moments_of

WIDE = 92  # columns
INDENT = " " * 21


def replay(name: str | None = None, *, speed: float | None = None) -> None:
    """Show a session again: what was asked, said, typed and found, each with its minute.

    Args:
        name: its name, or any prefix that only one has; weak, middling and strong come with the
            suite. By default, your newest.
        speed: how much faster than it was: 60 plays a minute a second. By default, at once.

    Raises:
        BadInterview: if there is no such session, it can't be read, or the speed isn't
            possible.
    """
    play(newest() if name is None else recorded(name), speed, time.sleep)


def play(session: Recorded, speed: float | None, sleep: Callable[[float], None]) -> None:
    """Print a session.

    Raises:
        BadInterview: if the speed isn't possible.
    """
    if speed is not None and (
        isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed < 1e9
    ):
        raise BadInterview(
            f"speed={speed!r}: must be a number above 0. 60 plays a minute a second; without "
            "it, all is shown at once."
        )
    print(head_of(session))
    moments = moments_of(shown_of(session), session.cells, session.minutes)
    you = "candidate" if session.is_shipped else "you"
    waits = [0.0, *(later.seconds - one.seconds for one, later in pairwise(moments))]
    for wait, moment in zip(waits, moments, strict=False):
        if speed is not None and wait > 0:
            sleep(wait / speed)
        print("\n".join(lines_of(moment, you)), flush=True)
    print("\n" + _foot(session))


def head_of(session: Recorded) -> str:
    """What kind of session it is, in a line."""
    return (
        f"Interview {session.name}: {session.minutes:g} minutes, {session.mode} mode, seed "
        f"{session.seed}."
    )


def shown_of(session: Recorded) -> Sequence[Event]:
    """The events of a session that may be shown: in real mode, no verdict before its end."""
    is_hidden = session.mode == "real" and not session.is_over
    return [one for one in session.events if not (is_hidden and one["did"] == "checked")]


def _foot(session: Recorded) -> str:
    if session.is_shipped:  # its marks are for the form to show
        return f'rehearsal.interviewer("{session.name}") has you mark it.'
    if session.is_over:
        card = session.scorecard()
        return f"{card.percent} of 100. rehearsal.compare() puts its marks next to others'."
    return (
        f"It hasn't ended: it is at minute {session.spent:.0f} of {session.minutes:g}. "
        f"rehearsal.interview({session.minutes:g}, seed={session.seed}) continues it."
        + ("" if session.mode == "study" else " What the graders found is shown after its end.")
    )


def lines_of(moment: Moment, you: str) -> Iterator[str]:
    """A moment as lines of text.

    Args:
        you: what to call the candidate.
    """
    if moment.kind == "box":
        yield f"\n{moment.stamp:>6}  -- {moment.text} --"
        return
    who = you if moment.who == "candidate" else moment.who
    first = f"{moment.stamp:>6}  {who:<11}  "
    if moment.is_code:
        yield f"{first}[types]"
        yield from (f"{INDENT}| {line}".rstrip() for line in moment.text.strip().splitlines())
    elif moment.kind == "evidence":  # tables
        yield from _hung(first, moment.text.splitlines())
    else:  # prose, however it was typed
        paragraphs = [" ".join(part.split()) for part in moment.text.split("\n\n")]
        parts = [textwrap.wrap(one, WIDE - len(INDENT)) for one in paragraphs]
        yield from _hung(first, [line for part in parts for line in part])


def _hung(first: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines or [""]):
        yield ((INDENT if number else first) + line).rstrip()


@dataclass(frozen=True)
class Comparison:
    """The marks of several sessions, row by row.

    Args:
        notes: what to bear in mind about them.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # what it is, one value each, the difference
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        difference = "difference" if len(self.names) == 2 else "last - first"
        table = [("", *self.names, difference), *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            ).rstrip()
            for row in table
        ]
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])

    __repr__ = __str__


def compare(*names: str) -> Comparison:
    """The marks of two or more sessions, row by row; by default, of your newest two.

    All are marked as today's rules mark them, whenever they were held.

    Args:
        names: their names, or any prefix that only one has; weak, middling and strong come with
            the suite.

    Raises:
        BadInterview: if one doesn't exist, hasn't ended or can't be read, or it's only one.
    """
    notes = list[str]()
    sessions = [recorded(name) for name in names] if names else _newest_two(notes)
    different = list(dict.fromkeys(session.name for session in sessions))
    if len(different) < max(2, len(sessions)):
        raise BadInterview(
            f"compare() got {', '.join(session.name for session in sessions)}: it takes two or "
            'more different interviews. compare("weak", "strong") compares two that come with '
            "the suite."
        )
    cards = [session.scorecard() for session in sessions]
    rows = [(row.name, *_numbers([card.marks[row.id] for card in cards])) for row in RUBRIC]
    rows.append(("of 100", *_numbers([card.percent for card in cards])))
    rows.append(("minutes", *_numbers([round(card.minutes) for card in cards])))
    rows.append(("hints", *_numbers([card.hints for card in cards])))
    rows.append(("mode", *(session.mode for session in sessions), ""))
    notes += _notes(sessions, cards)
    return Comparison(tuple(different), tuple(rows), tuple(notes))


def _numbers(values: Sequence[int]) -> tuple[str, ...]:
    difference = values[-1] - values[0]
    return (*map(str, values), f"{difference:+}" if difference else "0")


def _newest_two(notes: list[str]) -> list[Recorded]:
    found = list[Recorded]()
    for store in reversed(list(stores())):
        try:
            session = read(store)
        except BadInterview as error:
            notes.append(f"Left out: {error}")
            continue
        if session.is_over:
            found.insert(0, session)
        if len(found) == 2:
            return found
    have = f"only {found[0].name} has" if found else "none has"
    raise BadInterview(
        f"compare() takes two interviews that have ended, and {have}. "
        'compare("weak", "strong") compares two that come with the suite.'
    )


def _notes(sessions: Sequence[Recorded], cards: Sequence[Scorecard]) -> Iterable[str]:
    if len({session.mode for session in sessions}) > 1:
        yield "Study mode has hints, so its marks say less than those of real mode."
    if len({session.minutes for session in sessions}) > 1:
        yield "They differ in length: less code is expected of a shorter one."
    rows = [row for row in ROWS if cards[-1].marks[row] < cards[0].marks[row]]
    if rows:
        yield f"Lower than in {cards[0].name}: {', '.join(ROWS[row].name for row in rows)}."

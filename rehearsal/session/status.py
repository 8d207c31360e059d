"""All drills at a glance: which have passed, which are due, what to do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rehearsal.grading.drill import Drill
from rehearsal.session.clock import minutes_of
from rehearsal.session.schedule import Standing, next_of

HEAD = ("drill", "minutes", "attempts", "best", "status", "title")


def status_of(
    standings: Sequence[Standing], now: float, link: Callable[[Drill], str] = lambda drill: ""
) -> str:
    """A table of all drills and what to do next, as Markdown.

    Args:
        now: unix seconds.
        link: the address of a drill's notebook; empty if there is none to open.
    """
    rows = [
        (*row_of(standing, now), titled(standing.drill, link(standing.drill)))
        for standing in standings
    ]
    table = ["| " + " | ".join(row) + " |" for row in [HEAD, ("---",) * len(HEAD), *rows]]
    passed = sum(standing.is_passed for standing in standings)
    after = next_of(standings, now)
    advice = (
        f"Next: {to_do(after.drill, link(after.drill))}" if after else "Nothing is due now."
    )
    return "\n".join([*table, "", f"{passed} of {len(rows)} passed. {advice}"])


def to_do(drill: Drill, address: str) -> str:
    """How to begin a drill: in its notebook, which has the blank, or else with a call."""
    return titled(drill, address) if address else f'start("{drill.id}")'


def titled(drill: Drill, address: str) -> str:
    """A drill's title, as a link if there is somewhere to go."""
    return f"[{drill.title}]({address})" if address else drill.title


def row_of(standing: Standing, now: float) -> tuple[str, ...]:
    """One drill's line."""
    attempts = sum(len(one.of("attempt")) for one in standing.rounds)
    best = minutes_of(standing.best_s) if standing.best_s is not None else ""
    words = standing.words(now)
    words = f"passed, {words}" if standing.is_passed else words
    return standing.drill.id, f"{standing.drill.minutes:g}", str(attempts or ""), best, words


def list_of(standings: Sequence[Standing], now: float) -> list[str]:
    """One line per drill: id, minutes, state, best time, kind, title."""
    rows = []
    for standing in standings:
        drill, (_, _, _, best, words) = standing.drill, row_of(standing, now)
        rows.append((drill.id, f"{drill.minutes:g} min", words, best, drill.kind, drill.title))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "   ".join(word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True))
        for row in rows
    ]

"""The shapes of an interview's timeline, in the units of page.html.j2's drawing.

The questions it answers: "when did they talk, and when type?", "where was the silence?", "which
stage passed when?" The template draws it, so that the page's own colors apply, in light and
dark, and each shape carries its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rehearsal.interviews.boxes import boxes
from rehearsal.interviews.scorecard import LONGEST_SILENCE
from rehearsal.interviews.store import Event
from rehearsal.interviews.transcript import stamp_of

LEFT, WIDTH = 120.0, 960.0  # of the part with the minutes
BAR = 60.0  # the highest bar
MARKS = {"question": "question", "follow up": "follow", "nudge": "nudge"}


class Shape(NamedTuple):
    """A band, a bar or a mark: where it is, and what it says."""

    x: float
    width: float
    height: float
    label: str
    kind: str = ""


class Timeline(NamedTuple):
    """All shapes, and the whole picture in words."""

    boxes: Sequence[Shape]
    ticks: Sequence[Shape]
    asked: Sequence[Shape]
    words: Sequence[Shape]
    most_words: int
    lines: Sequence[Shape]
    most_lines: int
    checks: Sequence[Shape]
    silences: Sequence[Shape]
    incident: Sequence[Shape]
    alt: str


def timeline_of(
    events: Sequence[Event], cells: Mapping[str, str], minutes: float, spent: float
) -> Timeline:
    """The timeline.

    Args:
        spent: minutes that the interview took.
    """

    def x_of(minute: float) -> float:
        return round(LEFT + WIDTH * min(minute, minutes) / minutes, 1)

    def band(begins: float, ends: float, label: str) -> Shape:
        # However short, it must be seen.
        return Shape(x_of(begins), max(3.0, round(x_of(ends) - x_of(begins), 1)), 0, label)

    said = [(e["at"] / 60, len(e["text"].split())) for e in events if e["did"] == "say"]
    typed = [
        (e["at"] / 60, len(cells.get(e["file"], "").strip().splitlines()))
        for e in events
        if e["did"] == "type"
    ]
    words, most_words = _bars(said, "words", minutes)
    lines, most_lines = _bars(typed, "lines", minutes)
    edges = [0.0, *(minute for minute, _ in said), spent]
    silent = [(a, b) for a, b in pairwise(edges) if b - a > LONGEST_SILENCE]
    step = next(n for n in (5, 10, 15, 30) if minutes / n <= 12 or n == 30)
    incident = [band(a, b, f"incident, {b - a:.0f} min") for a, b in _incident(events, spent)]
    checks = list(_checks(events, x_of))
    return Timeline(
        boxes=[band(box.begins, box.ends, box.name) for box in boxes(minutes)],
        ticks=[Shape(x_of(m), 0, 0, str(m)) for m in range(0, int(minutes) + 1, step)],
        asked=[
            Shape(
                x_of(e["at"] / 60), 0, 0, f"{stamp_of(e['at'])} {e['text']}", MARKS[e["kind"]]
            )
            for e in events
            if e["did"] == "line" and e["kind"] in MARKS
        ],
        words=words,
        most_words=most_words,
        lines=lines,
        most_lines=most_lines,
        checks=checks,
        silences=[band(a, b, f"{b - a:.0f} min silent") for a, b in silent],
        incident=incident,
        alt=_alt(events, sum(n for _, n in said), sum(n for _, n in typed), silent, checks),
    )


def _bars(
    amounts: Sequence[tuple[float, int]], what: str, minutes: float
) -> tuple[list[Shape], int]:
    """A bar for each minute, and the highest one's amount."""
    per_minute: dict[int, int] = {}
    for minute, amount in amounts:
        key = int(min(minute, minutes - 1e-9))
        per_minute[key] = per_minute.get(key, 0) + amount
    most = max(per_minute.values(), default=0)
    one = WIDTH / minutes
    return [
        Shape(
            round(LEFT + one * minute, 1),
            round(max(2.0, one - 1.5), 1),
            round(max(1.5, BAR * amount / most), 1) if most else 0.0,
            f"minute {minute}: {amount} {what}",
        )
        for minute, amount in sorted(per_minute.items())
    ], most


def _checks(events: Sequence[Event], x_of: Any) -> Iterator[Shape]:
    """A mark for each verdict, with the number of stages that pass."""
    for event in events:
        if event["did"] != "checked" or event["status"] == "not checked":
            continue
        is_wrong = event["status"] in ("wrong", "crashed", "hung")
        names = ", ".join(event["stages"]) or "no stage"
        label = f"{stamp_of(event['at'])} {event['drill']}: {names} pass"
        if is_wrong:
            label += f"; {event['status']}"
        kind = "wrong" if is_wrong else "right"
        yield Shape(x_of(event["at"] / 60), 0, len(event["stages"]), label, kind)


def _incident(events: Sequence[Event], spent: float) -> list[tuple[float, float]]:
    """From the alert to its end, in minutes."""
    at = {e["kind"]: e["at"] / 60 for e in events if e["did"] == "line"}
    return [(at["alert"], at.get("incident over", spent))] if "alert" in at else []


def _alt(
    events: Sequence[Event],
    words: int,
    lines: int,
    silent: Sequence[tuple[float, float]],
    checks: Sequence[Shape],
) -> str:
    kinds = [event["kind"] for event in events if event["did"] == "line"]
    parts = [
        f"{kinds.count('question')} questions and {kinds.count('follow up')} follow-ups",
        f"{words} words said",
        f"{lines} lines typed",
        f"{len(checks)} checks, the last with {checks[-1].height:.0f} stages passed"
        if checks
        else "no check",
        "an incident" if "alert" in kinds else "no incident",
    ]
    parts += [f"silence from minute {a:.0f} to {b:.0f}" for a, b in silent]
    return f"{'; '.join(parts)}. The transcript below has all of it."

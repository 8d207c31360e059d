"""How an interview's minutes are divided: six boxes, in any length from 15 minutes.

The shares are those of chapter 10's plan for 45 minutes.
"""

from __future__ import annotations

from typing import NamedTuple

LEAST, MOST = 15, 240  # minutes
SHARES = {
    "clarify": 5 / 45,
    "sketch": 4 / 45,
    "happy path": 13 / 45,
    "distribution and faults": 10 / 45,
    "instrumentation": 4 / 45,
    "pushback": 9 / 45,
}
# What each box is for, as it's shown beside the clock.
PURPOSE = {
    "clarify": "Ask what changes the design, and say what has to hold.",
    "sketch": "Processes, state, failure domains. What you'll type, what stays an interface.",
    "happy path": "Config, data, model, step: the smallest trainer that runs on one rank.",
    "distribution and faults": "The second rank, the checkpoint, a kill and a resume.",
    "instrumentation": "Where the time goes, by phase, and what you'd alert on.",
    "pushback": "Defend it. Name the hole before they do, and what it costs whom.",
}


class Box(NamedTuple):
    """One part of an interview, in minutes from its beginning."""

    name: str
    begins: float
    ends: float

    @property
    def purpose(self) -> str:
        """What it is for."""
        return PURPOSE[self.name]


def boxes(minutes: float) -> list[Box]:
    """The boxes of an interview of this length, in order and without gaps."""
    found, begins = list[Box](), 0.0
    for name, share in SHARES.items():
        ends = begins + share * minutes
        found.append(Box(name, begins, ends))
        begins = ends
    return [*found[:-1], found[-1]._replace(ends=float(minutes))]


def box_at(minute: float, minutes: float) -> Box:
    """The box that a minute is in; after the end, the last one."""
    plan = boxes(minutes)
    return next((box for box in plan if minute < box.ends), plan[-1])

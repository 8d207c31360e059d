"""After the case: the score, what an expert would have looked at, and the whole story."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.score import Score, score_of
from rehearsal.incidents.store import Event
from rehearsal.incidents.tracks import track_of
from rehearsal.incidents.view import preformatted


@dataclass(frozen=True, repr=False)
class Debrief:
    """A debrief; printing it shows everything."""

    cause: str
    score: Score
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(self.text)


def debrief_of(drawn: Drawn, alert: str, events: Sequence[Event]) -> Debrief:
    """Judge what was done, and tell the story."""
    score = score_of(drawn, events)
    lines = [*(f"{kind.id}: {kind.title}." for kind in drawn.kinds), "", *score.lines()]
    lines += ["", "The page", f"  {alert}"]
    minute, sources = 0, track_of(drawn).sources
    for kind in drawn.kinds:
        of = f" to {kind.id}" if len(drawn.kinds) > 1 else ""
        lines += ["", f"An expert's path{of}"]
        for see in kind.path:
            minute += sources[see.source][0]
            scope = "".join(f", {name}={value!r}" for name, value in see.scope.items())
            lines.append(f'  minute {minute:>2}  look("{see.source}"{scope}): {see.asks}')
            lines.append(f"{'':<11}  {see.shows}")
        lines += ["", f"The chain{of}"]
        for link, text in zip(("cause", "mechanism", "symptom"), kind.chain, strict=True):
            lines.append(f"  {link:<9}  {text}")
    lines += ["", f"Misleading: {drawn.distractor.id}", f"  {drawn.distractor.explains}"]
    fix = drawn.reference
    lines += ["", f"A fix: {named(fix.settings) or 'none'}: {fix.why}."]
    for event in events:
        if event["did"] == "fix":
            changed = named({**event["settings"], **dict.fromkeys(event["modules"], "edited")})
            lines.append(f"  yours: {changed}: {event['text']}")
    lines += [*(f"Prevention: {kind.prevention}" for kind in drawn.kinds), ""]
    wrapped = [part for line in (*lines, *postmortem_in(events)) for part in wrap(line)]
    return Debrief(drawn.id, score, "\n".join(wrapped))


def wrap(line: str) -> list[str]:
    """A line in lines of at most 80 characters, indented like the first."""
    label = re.match(r" *(minute +\d+|(?:cause|mechanism|symptom|yes|partly|no) ) *", line)
    indent = label.end() if label else len(line) - len(line.lstrip())
    return textwrap.wrap(line, 80, subsequent_indent=" " * indent) or [""]


def named(changes: Mapping[str, Any]) -> str:
    """Settings and modules as they would be typed."""
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())


def postmortem_in(events: Sequence[Event]) -> list[str]:
    """The newest postmortem, or how to write one."""
    kept = [event["lines"] for event in events if event["did"] == "postmortem"]
    if not kept:
        return [
            "Now write the postmortem, a line each: impact, cause, detection, fix, prevention.",
            "case.postmortem(impact=..., ...) keeps it; at a terminal, type postmortem.",
        ]
    return ["Your postmortem", *(f"  {name:<11} {text}" for name, text in kept[-1].items())]

"""After the case: the score, what an expert would have looked at, and the whole story."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.score import Score, score_of
from rehearsal.incidents.sources import SOURCES
from rehearsal.incidents.store import Event


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
        return f"<pre>{escape(self.text)}</pre>"


def debrief_of(drawn: Drawn, alert: str, events: Sequence[Event]) -> Debrief:
    """Judge what was done, and tell the story."""
    kind, score = drawn.kind, score_of(drawn, events)
    lines = [f"{kind.id}: {kind.title}.", "", str(score), "", "An expert's path"]
    minute = 0
    for see in kind.path:
        minute += SOURCES[see.source][0]
        scope = "".join(f", {name}={value!r}" for name, value in see.scope.items())
        lines.append(f'  minute {minute:>2}  look("{see.source}"{scope})  {see.asks}')
        lines.append(f"             {see.shows}")
    cause, mechanism, symptom = kind.chain
    lines += ["", "The chain", f"  cause      {cause}", f"  mechanism  {mechanism}"]
    lines += [f"  symptom    {symptom}", f"  alert      {alert}"]
    lines += ["", f"Misleading: {drawn.distractor.id}", f"  {drawn.distractor.explains}"]
    fix = kind.reference(drawn.faulty)
    lines += ["", f"A fix: {dict(fix.settings) or 'none'}: {fix.why}."]
    for event in events:
        if event["did"] == "fix":
            changed = {**event["settings"], **dict.fromkeys(event["modules"], "(edited)")}
            lines.append(f"  yours: {changed}: {event['text']}")
    lines += [f"Prevention: {kind.prevention}", ""]
    kept = [event for event in events if event["did"] == "postmortem"]
    if kept:
        lines.append("Your postmortem")
        lines += [f"  {name:<11} {text}" for name, text in kept[-1]["lines"].items()]
    else:
        lines.append(
            "Now write the postmortem, a line each: case.postmortem(impact=..., cause=..., "
            "detection=..., fix=..., prevention=...)"
        )
    return Debrief(kind.id, score, "\n".join(lines))

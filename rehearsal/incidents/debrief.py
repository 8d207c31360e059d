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
    score = score_of(drawn, events)
    lines = [*(f"{kind.id}: {kind.title}." for kind in drawn.kinds), "", str(score)]
    lines += ["", "The page", f"  {alert}"]
    minute = 0
    for kind in drawn.kinds:
        of = f" to {kind.id}" if len(drawn.kinds) > 1 else ""
        lines += ["", f"An expert's path{of}"]
        for see in kind.path:
            minute += SOURCES[see.source][0]
            scope = "".join(f", {name}={value!r}" for name, value in see.scope.items())
            lines.append(f'  minute {minute:>2}  look("{see.source}"{scope})  {see.asks}')
            lines.append(f"             {see.shows}")
        lines += ["", f"The chain{of}"]
        for link, text in zip(("cause", "mechanism", "symptom"), kind.chain, strict=True):
            lines.append(f"  {link:<10} {text}")
    lines += ["", f"Misleading: {drawn.distractor.id}", f"  {drawn.distractor.explains}"]
    fix = drawn.reference
    lines += ["", f"A fix: {dict(fix.settings) or 'none'}: {fix.why}."]
    for event in events:
        if event["did"] == "fix":
            changed = {**event["settings"], **dict.fromkeys(event["modules"], "(edited)")}
            lines.append(f"  yours: {changed}: {event['text']}")
    lines += [*(f"Prevention: {kind.prevention}" for kind in drawn.kinds), ""]
    return Debrief(drawn.id, score, "\n".join([*lines, *postmortem_in(events)]))


def postmortem_in(events: Sequence[Event]) -> list[str]:
    """The newest postmortem, or how to write one."""
    kept = [event["lines"] for event in events if event["did"] == "postmortem"]
    if not kept:
        return [
            "Now write the postmortem, a line each: impact, cause, detection, fix, prevention.",
            "case.postmortem(impact=..., ...) keeps it; at a terminal, type postmortem.",
        ]
    return ["Your postmortem", *(f"  {name:<11} {text}" for name, text in kept[-1].items())]

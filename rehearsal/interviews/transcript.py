"""A session's events as a transcript: who said, typed or judged what, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from rehearsal.interviews.boxes import boxes
from rehearsal.interviews.spoken import names_in
from rehearsal.interviews.store import Event

Who = Literal["interviewer", "candidate", "graders", "clock"]


class Moment(NamedTuple):
    """One thing that happened.

    Args:
        kind: of a line, as in the events; else what was done: say, type, take back, checked,
            hint, pause, resume, box, end.
        text: what was said, or the code that was typed.
    """

    seconds: float
    who: Who
    kind: str
    text: str

    @property
    def stamp(self) -> str:
        """When, such as 9:30."""
        return stamp_of(self.seconds)

    @property
    def is_code(self) -> bool:
        """Whether the text is code."""
        return self.kind == "type"


def stamp_of(seconds: float) -> str:
    """Minutes and seconds on the interview's clock."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def moments_of(
    events: Sequence[Event], cells: Mapping[str, str], minutes: float
) -> list[Moment]:
    """Everything that somebody in the room could hear or see, in order.

    The incident's score is left out: it is for the scorecard.
    """
    found = list[Moment]()
    left = boxes(minutes)
    # A check is noted when it is done, for the second at which the cell was typed.
    for event in sorted(events, key=lambda each: each["at"]):
        while left and 60 * left[0].begins <= event["at"]:
            box = left.pop(0)
            found.append(Moment(60 * box.begins, "clock", "box", box.name))
        found += _moments(event, cells)
    return found


def _moments(event: Event, cells: Mapping[str, str]) -> Iterator[Moment]:
    at, did = event["at"], event["did"]
    if did == "line":
        yield Moment(at, "interviewer", event["kind"], event["text"])
    elif did == "say":
        yield Moment(at, "candidate", did, event["text"])
    elif did == "type":
        yield Moment(at, "candidate", did, cells.get(event["file"], ""))
    elif did == "take back":
        yield Moment(
            at, "candidate", did, f"takes {names_in(cells.get(event['file'], ''))} back"
        )
    elif did == "checked":
        yield Moment(at, "graders", did, verdict_in_words(event))
    elif did == "hint":
        yield Moment(at, "candidate", did, "asks for a hint")
    elif did in ("pause", "resume"):
        yield Moment(
            at, "clock", did, "The clock stops." if did == "pause" else "The clock runs again."
        )
    elif did == "end":
        why = "The time is up." if event["why"] == "time" else "The interview is ended."
        yield Moment(at, "clock", did, why)


def verdict_in_words(event: Event) -> str:
    """What the graders found in what was typed so far."""
    if event["status"] == "not checked":
        return f"{event['drill']}: not checked ({event.get('problem', 'no reason given')})."
    stages = ", ".join(event["stages"])
    parts = [f"{event['drill']}: {stages} pass." if stages else f"{event['drill']}:"]
    if event["status"] == "passed":
        parts.append("All of it passes.")
    elif event["status"] == "not_attempted":
        next_stage = event.get("next_stage")
        parts.append(f"Next: {next_stage}." if next_stage else "Not all of it is there yet.")
    else:
        found = [f"{found}." for _, found, _, _ in event["findings"][:1]]
        parts += [f"{event['status'].capitalize()}:", *found]
    return " ".join(parts)

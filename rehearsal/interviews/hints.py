"""What study mode says to somebody who is stuck."""

from __future__ import annotations

from rehearsal.interviews.boxes import Box
from rehearsal.interviews.state import State


def hint_for(state: State, box: Box) -> str:
    """The points that the last answer still lacks; else what this part is for."""
    if state.asked:
        last = state.asked[-1]
        missing = [
            point.text for point in last.card.points if last.points[point.id][0] != "covered"
        ]
        if missing:
            return "Still missing:\n" + "\n".join(f"- {text}" for text in missing)
    return f"{box.name}: {box.purpose}"

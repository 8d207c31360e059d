"""What to do after an interview: a drill, the cards that were missed, a chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rehearsal.interviews.rubric import ROWS
from rehearsal.interviews.state import State


def advice(state: State, weakest: Sequence[str]) -> tuple[Mapping[str, str], ...]:
    """What to do next, from the weakest rows: a drill, missed cards, a chapter."""
    found = list[Mapping[str, str]]()
    for row in weakest:
        practice, why = ROWS[row].practice, ROWS[row].name
        missed = [each for each in state.asked if each.row == row and each.share < 0.6]
        found += [
            {"do": f'ask("{each.card.id}")', "why": f"{why}: points missed"} for each in missed
        ]
        if not missed:
            found.append({"do": f'ask(topic="{practice.topics[0]}")', "why": why})
        for drill in _drills_for(row, state, practice.drills):
            found.append({"do": f'start("{drill}")', "why": why})
        chapter = practice.chapters[0]
        found.append({"do": f"notebooks/handbook/{chapter}.ipynb", "why": why})
    return tuple({item["do"]: item for item in found}.values())


def _drills_for(row: str, state: State, drills: Sequence[str]) -> Sequence[str]:
    """One drill: for the code, the one that fits how far it got."""
    if row != "builds":
        return drills[:1]
    passed = len(state.checked[-1]["stages"]) if state.checked else 0
    return [drills[0 if passed < 3 else 1 if passed < 5 else 2 if passed < 9 else 3]]

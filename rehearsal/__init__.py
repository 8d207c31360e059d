"""The coach: runs what you typed on real ranks and tells you what is wrong with it.

import rehearsal
rehearsal.start("lift_to_distributed")    # shows the task and starts the clock
rehearsal.check("lift_to_distributed")    # in a later cell, once you have typed it
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rehearsal.deck.ask import ask, export_to_anki, topics
    from rehearsal.deck.cards import BadDeck, Card, UnknownCard, cards
    from rehearsal.deck.judge import Coverage, judge_answer
    from rehearsal.grading.check import grade, grade_source, warm_up
    from rehearsal.grading.drill import Drill, UnknownDrill
    from rehearsal.grading.verdict import Finding, Verdict
    from rehearsal.incidents.case import Incident
    from rehearsal.incidents.opening import incident, incident_kinds
    from rehearsal.interviews.form import Interviewer, interviewer
    from rehearsal.interviews.opening import interview
    from rehearsal.interviews.replay import compare, replay
    from rehearsal.interviews.session import Interview
    from rehearsal.interviews.store import BadInterview
    from rehearsal.session.coach import (
        brief,
        check,
        debrief,
        diff,
        hint,
        narration,
        solution,
        start,
        status,
    )
    from rehearsal.plan.route import UnknownPage
    from rehearsal.plan.today import today
    from rehearsal.plan.wishes import BadPlan
    from rehearsal.session.progress import forget

# Imported when they are first used: a rank imports this package too, and needs none of them.
_HOMES = {
    "rehearsal.deck.ask": "ask export_to_anki topics",
    "rehearsal.deck.cards": "BadDeck Card UnknownCard cards",
    "rehearsal.deck.judge": "Coverage judge_answer",
    "rehearsal.grading.check": "grade grade_source warm_up",
    "rehearsal.grading.drill": "Drill UnknownDrill",
    "rehearsal.grading.verdict": "Finding Verdict",
    "rehearsal.incidents.case": "Incident",
    "rehearsal.incidents.opening": "incident incident_kinds",
    "rehearsal.interviews.form": "Interviewer interviewer",
    "rehearsal.interviews.opening": "interview",
    "rehearsal.interviews.replay": "compare replay",
    "rehearsal.interviews.session": "Interview",
    "rehearsal.interviews.store": "BadInterview",
    "rehearsal.plan.route": "UnknownPage",
    "rehearsal.plan.today": "today",
    "rehearsal.plan.wishes": "BadPlan",
    "rehearsal.session.coach": "brief check debrief diff hint narration solution start status",
    "rehearsal.session.progress": "forget",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def drills() -> list[Drill]:
    """All drills in the order in which to take them: id, title, minutes, needed names."""
    from rehearsal.grading.drill import drill_ids, load

    return [load(drill_id) for drill_id in drill_ids()]


if "IPython" in sys.modules:  # a notebook: from here on, remember which cell defined what
    importlib.import_module("rehearsal.session.executions").record()
    importlib.import_module("rehearsal.interviews.shown").register()

__all__ = [
    "BadDeck",
    "BadInterview",
    "BadPlan",
    "Card",
    "Coverage",
    "Drill",
    "Finding",
    "Incident",
    "Interview",
    "Interviewer",
    "UnknownCard",
    "UnknownDrill",
    "UnknownPage",
    "Verdict",
    "ask",
    "brief",
    "cards",
    "check",
    "compare",
    "debrief",
    "diff",
    "drills",
    "export_to_anki",
    "forget",
    "grade",
    "grade_source",
    "hint",
    "incident",
    "incident_kinds",
    "interview",
    "interviewer",
    "judge_answer",
    "narration",
    "replay",
    "solution",
    "start",
    "status",
    "today",
    "topics",
    "warm_up",
]

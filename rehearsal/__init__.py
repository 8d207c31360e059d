"""The coach: runs what a learner typed on real ranks, and says what is wrong with it."""

from rehearsal.engine.ranks import warm_up
from rehearsal.grading.check import grade, grade_source
from rehearsal.grading.drill import Drill, UnknownDrill, drill_ids, load
from rehearsal.grading.verdict import Finding, Verdict
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
from rehearsal.session.progress import forget


def drills() -> list[Drill]:
    """All drills, in the order in which to take them: id, title, minutes, needed names."""
    return [load(drill_id) for drill_id in drill_ids()]


__all__ = [
    "Drill",
    "Finding",
    "UnknownDrill",
    "Verdict",
    "brief",
    "check",
    "debrief",
    "diff",
    "drills",
    "forget",
    "grade",
    "grade_source",
    "hint",
    "narration",
    "solution",
    "start",
    "status",
    "warm_up",
]

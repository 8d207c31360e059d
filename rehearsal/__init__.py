"""The coach: runs what a learner typed on real ranks, and says what is wrong with it."""

from rehearsal.drill import Drill, drill_ids, load
from rehearsal.grading import grade, grade_source


def drills() -> list[Drill]:
    """All drills, in the order in which to take them: id, title, minutes, needed names."""
    return [load(drill_id) for drill_id in drill_ids()]


__all__ = ["Drill", "drills", "grade", "grade_source"]

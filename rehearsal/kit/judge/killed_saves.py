"""The run of a job that ``observe.killed_saves`` made, without the restarts that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rehearsal.engine.reports import RankReport


def run_before_restarts(reports: Sequence[RankReport]) -> list[RankReport]:
    """What each rank did in the run, as if the job had been no more; none if it didn't end."""
    own = []
    for report in reports:
        kinds = [event["kind"] for event in report.events]
        if "ended" not in kinds:
            return []
        end = kinds.index("ended")
        answer = report.events[end]["answer"]
        own.append(replace(report, events=report.events[:end], answer=answer))
    return own

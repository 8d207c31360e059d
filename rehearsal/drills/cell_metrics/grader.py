"""Phases against a clock of our own, percentiles by hand, a log whose writer is killed."""

from __future__ import annotations

from functools import partial

from rehearsal.grading.drill import Scenario
from rehearsal.kit.judge.findings import only_first
from .findings import CODES as CODES
from .log_job import logs_body
from .logs import logs_findings
from .plan import logs_plan, timers_plan
from .timer_job import timers_body
from .timers import timers_findings


def scenarios(seed: int) -> list[Scenario]:
    """One process each. The deadline leaves time for whatever a first call imports."""
    timers, logs = timers_plan(seed), logs_plan(seed)
    return [
        Scenario(
            name="phases",
            body=partial(timers_body, timers),
            judge=only_first(partial(timers_findings, timers)),
            world_size=1,
            deadline_s=15,
            judges_failures=True,
        ),
        Scenario(
            name="events",
            body=partial(logs_body, logs),
            judge=only_first(partial(logs_findings, logs)),
            world_size=1,
            deadline_s=15,
        ),
    ]

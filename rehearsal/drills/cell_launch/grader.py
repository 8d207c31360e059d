"""An uninterrupted run; the same stopped, killed, resumed, finished; an error on one rank.

Then a single process, stopped where a save is due, and killed at drawn moments of its saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rehearsal.engine.reports import Fault
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import only_first
from .codes import TABLE
from .judge_runs import (
    alone_judge,
    error_judge,
    finished_judge,
    killed_judge,
    kills_judge,
    resumed_judge,
    sigterm_judge,
)
from .plan import one_rank, plan_of
from .runs import error_body, finished_body, kills_body, run_body

CODES = TABLE.codes


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check; all but the last two share one run's plan, four share its folder."""
    plan, single = plan_of(seed), one_rank(seed)
    # Torch's loader takes 5 s to give up workers that an error left behind.
    failing = plan._replace(settings=plan.settings | {"num_workers": 0})
    term = Fault(rank=plan.stop_rank, at="optimizer_step", count=plan.stop_at, signal="TERM")
    kill = Fault(rank=plan.kill_rank, at="optimizer_step", count=plan.kill_after)
    # Whether saves are made in the background is a matter of each start.
    behind = plan._replace(settings=plan.settings | {"async_checkpoint": True})
    of_a_run: list[tuple[str, str, Callable[..., Iterator[Finding]], Fault | None]] = [
        ("uninterrupted", "alone", alone_judge, None),
        ("sigterm", "again", sigterm_judge, term),
        ("killed", "again", killed_judge, kill),
        ("resumed", "again", resumed_judge, None),
        ("finished", "again", finished_judge, None),
    ]
    jobs = [
        Scenario(
            name=name,
            body=partial(
                finished_body if name == "finished" else run_body,
                behind if name == plan.saves_behind else plan,
                folder,
            ),
            judge=only_first(partial(judge, plan)),
            world_size=plan.world_size,
            deadline_s=8,
            fault=fault,
            judges_failures=name != "finished",
        )
        for name, folder, judge, fault in of_a_run
    ]
    jobs.append(
        Scenario(
            name="error",
            body=partial(error_body, failing),
            judge=only_first(partial(error_judge, failing)),
            world_size=plan.world_size,
            deadline_s=8,
            judges_failures=True,
        )
    )
    stopping = single.stopping()
    jobs.append(
        Scenario(
            name="stopped",
            body=partial(run_body, stopping, "stopped"),
            judge=only_first(partial(sigterm_judge, stopping)),
            world_size=1,
            deadline_s=8,
            fault=Fault(rank=0, at="optimizer_step", count=single.stop_at, signal="TERM"),
            judges_failures=True,
        )
    )
    jobs.append(
        Scenario(
            name="kills",
            body=partial(kills_body, single),
            judge=only_first(partial(kills_judge, single)),
            world_size=1,
            deadline_s=20,  # a dozen starts, one after the other
        )
    )
    return jobs

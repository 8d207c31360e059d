"""Run a plan: attempt after attempt, as a supervisor would, into a real run folder.

RUN/supervisor.jsonl     one line per attempt: when it ran, and how each rank ended
RUN/run/                 the run folder of trainer_core, and telemetry/ of the hosts
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.engine.server import warm_up
from rehearsal.incidents.deployed import deploy
from rehearsal.incidents.world import Plan

PRELOAD = ("trainer_core.launch", "torch._dynamo", "rehearsal.incidents.in_rank")
DEADLINE_S = 40.0
IN_RANK = "rehearsal.incidents.in_rank:train"


def prepare() -> None:
    """Start the servers that fork the ranks; they take some seconds, in the background."""
    warm_up(*PRELOAD)


def run_job(plan: Plan, folder: Path) -> None:
    """Start the job until it ends well, or the supervisor gives up. Never raises for a rank."""
    prepare()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(plan.as_json())
    run_dir = folder / "run"
    code = deploy(plan, folder / "code")
    for attempt in range(plan.world.max_attempts):
        plan = without_lost_host(plan, attempt)
        began = time.time()
        reports = run_ranks(
            IN_RANK,
            plan,
            attempt,
            str(run_dir),
            code and str(code),
            world_size=plan.world_size,
            deadline_s=DEADLINE_S,
            folder=folder / "shared",
        )
        record = {
            "attempt": attempt,
            "began": began,
            "ended": time.time(),
            "ranks": [how_it_ended(report) for report in reports],
        }
        with (folder / "supervisor.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if all(report.exitcode == 0 for report in reports):
            return


def without_lost_host(plan: Plan, attempt: int) -> Plan:
    """The plan on the hosts that are left after a kill that took one for good."""
    lost = plan.world.lost_rank
    if lost is None or attempt == 0 or len(plan.placement) <= lost:
        return plan
    hosts = [host for rank, host in enumerate(plan.placement) if rank != lost]
    return plan.with_settings(hosts=hosts).with_world(lost_rank=None)


def how_it_ended(report: RankReport) -> dict[str, Any]:
    """One rank's end, as JSON."""
    failure = report.failure
    return {
        "rank": report.rank,
        "exitcode": report.exitcode,
        "error": f"{failure.kind}: {failure.message}" if failure else "",
        "traceback": failure.traceback if failure else "",
        "output": report.output[-6000:],
        "answer": report.answer if report.has_answer else None,
    }

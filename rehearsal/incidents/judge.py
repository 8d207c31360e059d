"""Whether a fix worked: rerun the job, and compare the symptoms before and after."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.incidents.alarms import ALARMS, Alarm, firing
from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job import run_job
from rehearsal.incidents.settings import apply
from rehearsal.incidents.world import Plan


class Verdict(NamedTuple):
    """Whether the symptom is gone and no new one appeared, and what was measured."""

    is_fixed: bool
    text: str
    new: list[str] = []

    def __bool__(self) -> bool:
        return self.is_fixed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def symptoms(drawn: Drawn, evidence: Evidence) -> set[str]:
    """The alarms that fire, the case's own included."""
    own = {alarm.id for alarm in drawn.alarms if alarm.fires(evidence)}
    return own | set(firing(evidence))


def alarm_of(drawn: Drawn, name: str) -> Alarm:
    """An alarm by id."""
    own = {alarm.id: alarm for alarm in drawn.alarms}
    return own.get(name) or ALARMS[name]


def judge_fix(
    drawn: Drawn, before: Evidence, changes: Mapping[str, Any], folder: Path
) -> Verdict:
    """Apply changes of settings to a case and judge the rerun. Raises BadFix."""
    return judge_plan(drawn, before, apply(drawn.faulty, changes), folder)


def judge_plan(drawn: Drawn, before: Evidence, plan: Plan, folder: Path) -> Verdict:
    """Rerun the job with another plan, in a fresh folder, and compare.

    If all that is wrong is a symptom of timing that wasn't there before, the job runs once
    more: another program may have taken the cores.
    """
    if plan == drawn.faulty:
        if not drawn.is_faulty:
            return Verdict(True, "Nothing was changed, and nothing needed to be.")
        return Verdict(False, f"Nothing was changed: {drawn.alarms[0].describe(before)}.")
    shutil.rmtree(folder, ignore_errors=True)  # left by a rerun that was interrupted
    for number in (1, 2):
        run_job(plan, folder / f"{number}")
        after = Evidence(folder / f"{number}", plan)
        verdict = compare(drawn, before, after)
        is_noise = verdict.new and all(alarm_of(drawn, name).is_timing for name in verdict.new)
        if not is_noise or any(alarm.fires(after) for alarm in drawn.alarms):
            break
    return verdict


def compare(drawn: Drawn, before: Evidence, after: Evidence) -> Verdict:
    """What was measured before and after a change, in words."""
    own = [alarm.id for alarm in drawn.alarms]
    shown = symptoms(drawn, after)
    left = shown & {*own, *drawn.related}
    new = sorted(shown - symptoms(drawn, before) - left)
    told = [
        f"{alarm.describe(after)}; before the change it was {alarm.figure(before)}"
        for alarm in drawn.alarms
    ]
    if own[0] in left or (left and len(own) == 1):
        others = sorted(left - set(own))
        more = "".join(f" Also: {alarm_of(drawn, n).describe(after)}." for n in others)
        return Verdict(False, f"Not fixed: {told[0]}.{more}", new)
    if left:
        return Verdict(
            False,
            f"The symptom that paged you is gone: {told[0]}. But the job has another fault: "
            f"{'; '.join(told[1:])}. A fix starts from the job that paged you, so apply both "
            "changes together.",
            new,
        )
    if new:
        named = "; ".join(alarm_of(drawn, name).describe(after) for name in new)
        return Verdict(
            False,
            f"The symptom is gone: {'; '.join(told)}. But there is a new one: {named}.",
            new,
        )
    return Verdict(True, f"Fixed: {'; '.join(told)}. No new symptom.")

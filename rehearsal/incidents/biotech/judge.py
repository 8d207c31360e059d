"""Whether a fix worked, and whether a kind holds: as on the general track, with other parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.incidents import draw as drawing
from rehearsal.incidents import judge, proof, settings
from rehearsal.incidents.biotech.alarms import ALARMS, firing
from rehearsal.incidents.biotech.deck import DECK
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.job import run_job
from rehearsal.incidents.biotech.settings import RULES
from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.parts import with_parts
from rehearsal.incidents.world import Plan


def apply(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """The plan with these settings of the track. Raises BadFix."""
    return settings.apply(plan, changes, RULES)


def draw(seed: int, name: str | None = None) -> Drawn:
    """The case of a seed."""
    return drawing.draw(seed, name, DECK)


symptoms = with_parts(judge.symptoms, firing=firing)
alarm_of = with_parts(judge.alarm_of, ALARMS=ALARMS)
compare = with_parts(judge.compare, symptoms=symptoms, alarm_of=alarm_of)
judge_plan = with_parts(
    judge.judge_plan, run_job=run_job, Evidence=BioEvidence, compare=compare, alarm_of=alarm_of
)
judge_fix = with_parts(judge.judge_fix, judge_plan=judge_plan, apply=apply)
run = with_parts(proof.job, run_job=run_job, Evidence=BioEvidence, apply=apply)
check_fault = with_parts(proof.check_fault, symptoms=symptoms)
prove_one = with_parts(
    proof.prove_one, draw=draw, job=run, check_fault=check_fault, judge_fix=judge_fix
)

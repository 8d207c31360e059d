"""One proof: a kind on a seed, healthy, faulty, with the reference fix and with two wrong ones.

It holds if the claims differ from the healthy run's as claimed, the symptom is there and
nothing else is, the reference fix removes it, and neither wrong fix does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rehearsal.incidents.draw import Drawn, draw
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job import run_job
from rehearsal.incidents.judge import judge_fix, symptoms
from rehearsal.incidents.settings import apply
from rehearsal.incidents.world import Plan


class Proof(NamedTuple):
    """One kind or pair on one seed."""

    name: str
    seed: int
    problems: list[str]
    case_s: float  # of the faulty run
    fix_s: float  # of the rerun with the reference fix


def prove_one(name: str, seed: int, folder: Path) -> Proof:
    """Run the five jobs of a kind or pair and a seed, and check them."""
    drawn = draw(seed, name)
    healthy = job(drawn.healthy, folder / "healthy")
    began = time.monotonic()
    faulty = job(drawn.faulty, folder / "faulty")
    case_s = time.monotonic() - began
    problems = list(check_fault(drawn, healthy, faulty))
    began = time.monotonic()
    reference = drawn.reference
    verdict = judge_fix(drawn, faulty, reference.settings, folder / "reference")
    fix_s = time.monotonic() - began
    if not verdict.is_fixed:
        problems.append(f"reference fix {dict(reference.settings)}: {verdict.text}")
    for number, fix in enumerate(drawn.wrong):
        verdict = judge_fix(drawn, faulty, fix.settings, folder / f"wrong-{number}")
        if verdict.is_fixed:
            problems.append(f"wrong fix {dict(fix.settings)} worked: {verdict.text}")
    return Proof(name, seed, problems, case_s, fix_s)


def job(plan: Plan, folder: Path) -> Evidence:
    """Run a plan; its evidence."""
    run_job(apply(plan, {}), folder)
    return Evidence(folder, plan)


def check_fault(drawn: Drawn, healthy: Evidence, faulty: Evidence) -> Iterator[str]:
    """What is wrong with the fault itself."""
    own = {alarm.id for alarm in drawn.alarms}
    if extra := symptoms(drawn, healthy) - (set() if drawn.is_faulty else own):
        yield f"the healthy run shows {sorted(extra)}"
    for alarm in drawn.alarms:
        if not alarm.fires(faulty):
            yield f"the faulty run lacks its symptom: {alarm.describe(faulty)}"
    if extra := symptoms(drawn, faulty) - own - drawn.related:
        yield f"the faulty run also shows {sorted(extra)}"
    for claim in (claim for kind in drawn.kinds for claim in kind.claims):
        with_fault, without = claim.measure(faulty), claim.measure(healthy)
        if not (with_fault > claim.low and without < claim.high):
            yield (
                f"{claim.text}: {with_fault:.3g} with the fault (claimed above {claim.low:g}), "
                f"{without:.3g} without (claimed below {claim.high:g})"
            )

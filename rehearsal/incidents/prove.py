"""Prove the kinds: for each seed, run healthy, faulty, the reference fix and two wrong fixes.

    python -m rehearsal incidents prove [KIND ...] --seeds 20

A kind holds on a seed if its claims differ from the healthy run's as claimed, its symptom is
there and nothing else is, the reference fix removes it, and neither wrong fix does.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rehearsal.incidents.draw import Drawn, draw
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.judge import judge_fix, symptoms
from rehearsal.incidents.job import run_job
from rehearsal.incidents.kinds.registry import KINDS
from rehearsal.incidents.settings import apply
from rehearsal.incidents.world import Plan

RECORD = Path(__file__).resolve().parents[2] / "docs" / "incidents.json"


class Proof(NamedTuple):
    """One kind on one seed."""

    kind: str
    seed: int
    problems: list[str]
    case_s: float  # of the faulty run
    fix_s: float  # of the rerun with the reference fix


def prove_one(kind_id: str, seed: int, folder: Path) -> Proof:
    """Run the five jobs of a kind and a seed, and check them."""
    drawn = draw(seed, kind_id)
    healthy = job(drawn.healthy, folder / "healthy")
    began = time.monotonic()
    faulty = job(drawn.faulty, folder / "faulty")
    case_s = time.monotonic() - began
    problems = list(check_fault(drawn, healthy, faulty))
    began = time.monotonic()
    reference = drawn.kind.reference(drawn.faulty)
    verdict = judge_fix(drawn, faulty, reference.settings, folder / "reference")
    fix_s = time.monotonic() - began
    if not verdict.is_fixed:
        problems.append(f"reference fix {dict(reference.settings)}: {verdict.text}")
    for number, fix in enumerate(drawn.kind.wrong(drawn.faulty)):
        verdict = judge_fix(drawn, faulty, fix.settings, folder / f"wrong-{number}")
        if verdict.is_fixed:
            problems.append(f"wrong fix {dict(fix.settings)} worked: {verdict.text}")
    return Proof(kind_id, seed, problems, case_s, fix_s)


def job(plan: Plan, folder: Path) -> Evidence:
    """Run a plan; its evidence."""
    run_job(apply(plan, {}), folder)
    return Evidence(folder, plan)


def check_fault(drawn: Drawn, healthy: Evidence, faulty: Evidence) -> Iterator[str]:
    """What is wrong with the fault itself."""
    kind = drawn.kind
    if extra := symptoms(drawn, healthy) - (
        {drawn.alarm.id} if kind.layer == "none" else set()
    ):
        yield f"the healthy run shows {sorted(extra)}"
    if drawn.alarm.id not in symptoms(drawn, faulty):
        yield f"the faulty run lacks its symptom: {drawn.alarm.describe(faulty)}"
    if extra := symptoms(drawn, faulty) - {drawn.alarm.id, *kind.related}:
        yield f"the faulty run also shows {sorted(extra)}"
    for claim in kind.claims:
        with_fault, without = claim.measure(faulty), claim.measure(healthy)
        if not (with_fault > claim.low and without < claim.high):
            yield (
                f"{claim.text}: {with_fault:.3g} with the fault (claimed above {claim.low:g}), "
                f"{without:.3g} without (claimed below {claim.high:g})"
            )


def prove(
    kinds: list[str], seeds: range, say: Callable[[str], None], keep: bool = False
) -> bool:
    """Prove kinds on seeds, one line each; record the result. True if all held."""
    is_good = True
    for kind_id in kinds:
        proofs = []
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix=f"incident-{kind_id}-{seed}-"))
            proof = prove_one(kind_id, seed, folder)
            proofs.append(proof)
            record(kind_id, proofs)  # after each seed: a full proof takes an hour
            for problem in proof.problems:
                say(f"  {kind_id} seed {seed}: {problem}" + (f" [{folder}]" if keep else ""))
            if not (keep and proof.problems):
                shutil.rmtree(folder)
        passed = sum(not proof.problems for proof in proofs)
        longest = max(proof.case_s for proof in proofs), max(proof.fix_s for proof in proofs)
        say(
            f"{kind_id}: {passed} of {len(proofs)} seeds; longest case {longest[0]:.1f} s, "
            f"longest fix {longest[1]:.1f} s"
        )
        is_good &= passed == len(proofs)
    return is_good


def record(kind_id: str, proofs: list[Proof]) -> None:
    """Write a kind's result to docs/incidents.json."""
    with RECORD.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several kinds may be proved at a time
        file.seek(0)
        known = json.loads(file.read() or "{}")
        middle = sorted(proof.case_s for proof in proofs)[len(proofs) // 2]
        known[kind_id] = {
            "seeds": len(proofs),
            "passed": sum(not proof.problems for proof in proofs),
            "failed_seeds": [proof.seed for proof in proofs if proof.problems],
            "median_case_s": round(middle, 1),
            "longest_case_s": round(max(proof.case_s for proof in proofs), 1),
            "longest_fix_s": round(max(proof.fix_s for proof in proofs), 1),
        }
        kept = {name: known[name] for name in sorted(known) if name in KINDS}
        file.truncate(0)
        file.write(json.dumps(kept, indent=1) + "\n")

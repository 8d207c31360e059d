"""Networks with known breaks, and what a test says about each of them.

A break is planted, so which symmetries it breaks is known on paper: the judge compares names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted, listed
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import first_of

from .breaks import MIRRORS, TURNS
from .codes import TABLE
from .networks import broken_by, described, is_zero_somewhere
from .observed import NAMES, run
from .plan import Case, Job, jobs

CODES = TABLE.codes
DRAWS = 4  # of each motion, at least
# Where to look if a network is called broken that isn't, by the first name.
LOOKS = {
    "rotation": "at how R gets to the positions and to the vectors, and at what errors are "
    "compared with",
    "reflection": "at how R gets to the positions and to the vectors, and at what errors are "
    "compared with",
    "translation": "at what vectors do when positions shift, and at how far the shift goes",
    "permutation": "at everything that has a node's number in it, and which way it maps",
}


def judge(job: Job, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first network that has a finding explains the rest."""
    if any(not report.has_answer for report in reports):
        return unpaired_findings(job, reports)
    facts = [report.answer["facts"] for report in reports]
    tested = min(map(len, facts))
    return first_of(
        *(
            case_findings(case, [own[at] for own in facts])
            for at, case in enumerate(job.cases[:tested])
        ),
        draw_findings(job, reports),
        global_findings(reports),
    )


def global_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """What all tests of a job together have changed in the process."""
    for report in reports:
        if changed := report.answer["changed"]:
            found = f"after tests of {len(report.answer['facts'])} networks on rank "
            found += f"{report.rank}, these weren't as before: {listed(changed)}"
            yield TABLE("changes-global-state", found)
            return


def unpaired_findings(job: Job, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Not all ranks finished: the network that they were testing."""
    for finding in mismatched_collectives(reports):
        ended = [len(report.answer["facts"]) for report in reports if report.has_answer]
        where = f"on a network that {described(job.cases[min(ended) - 1])}: " if ended else ""
        yield TABLE("collective-on-some-ranks", f"{where}{finding.found}")


def names(values: Iterable[str]) -> str:
    """Names in the order of the brief: "rotation and reflection"."""
    own = [*values]
    known = [name for name in NAMES if name in own]
    return listed([*known, *sorted({*own} - {*NAMES})] or ["nothing"])


def ranks_of(values: Sequence[object]) -> str:
    """The world size, as a finding begins: "on 1 rank"."""
    return f"on {counted(len(values), 'rank')}"


def case_findings(case: Case, facts: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """One network on all ranks."""
    where = f"{ranks_of(facts)}, a network that {described(case)}"
    yield from first_of(
        state_findings(facts, where),
        refusal_findings(case, facts, where),
        return_findings(facts, where),
        verdict_findings(case, facts, where),
    )


def state_findings(facts: Sequence[dict[str, Any]], where: str) -> Iterator[Finding]:
    """How the network was called, and what is different afterward."""
    for rank, fact in enumerate(facts):
        if fact["in_training"]:
            part = fact["in_training"][0]
            found = f"{where} was called with {part or 'its root'} in training mode"
            yield TABLE("runs-in-training-mode", f"{found} on rank {rank}")
        elif fact["recorded"]:
            found = f"{where} was called on rank {rank}, and its outputs require gradients"
            yield TABLE("records-a-graph", found)
        elif fact["arguments"]:
            found = f"testing {where.partition(', ')[2]} changed {listed(fact['arguments'])} "
            yield TABLE("changes-its-arguments", f"{found}of rank {rank} in place")
        elif fact["model"]:
            after = " before it raised ValueError" if fact["raised"] is not None else ""
            found = f"{where} was tested on rank {rank}; that changed {listed(fact['model'])}"
            yield TABLE("changes-the-model", found + after)
        else:
            continue
        return


def refusal_findings(
    case: Case, facts: Sequence[dict[str, Any]], where: str
) -> Iterator[Finding]:
    """ValueError on every rank, or on none."""
    for rank, fact in enumerate(facts):
        if is_zero_somewhere(case) and fact["raised"] is None:
            found = f"{where} was said to break {said(fact)} on rank {rank}, without an error"
            yield TABLE("accepts-zeros", found)
        elif fact["raised"] is not None and not is_zero_somewhere(case):
            found = f"{where} raised ValueError on rank {rank}: {fact['raised']!r}"
            yield TABLE("raises-without-reason", found)
        else:
            continue
        return


def said(fact: dict[str, Any]) -> str:
    """What a rank returned, for a sentence."""
    return names(fact["returned"]) if fact["is_set"] else str(fact["returned"])


def return_findings(facts: Sequence[dict[str, Any]], where: str) -> Iterator[Finding]:
    """A set, the same on all ranks."""
    if any(fact["raised"] is not None for fact in facts):
        return
    for rank, fact in enumerate(facts):
        if not fact["is_set"]:
            found = f"for {where.partition(', ')[2]}, rank {rank} returned {fact['returned']}"
            yield TABLE("wrong-return-value", found)
            return
    for rank, fact in enumerate(facts):
        if fact["returned"] != facts[0]["returned"]:
            found = f"{where} breaks {said(facts[0])} according to rank 0, and {said(fact)} "
            yield TABLE("ranks-differ", f"{found}according to rank {rank}")
            return


def verdict_findings(
    case: Case, facts: Sequence[dict[str, Any]], where: str
) -> Iterator[Finding]:
    """What the network is said to break, and what it breaks."""
    if is_zero_somewhere(case):
        return
    ours, right = {*facts[0]["returned"]}, broken_by(case)
    if ours == right:
        return
    missing, extra = right - ours, ours - right
    code, look = case.code, ""
    if missing == MIRRORS and right >= TURNS:
        code = "misses-reflection"  # some reflections keep what every rotation breaks
    elif not missing and not right:
        first = next((name for name in NAMES if name in extra), "")
        is_usual = case.units == (1.0, 1.0) and code == "calls-it-broken"
        look = LOOKS.get(first, "") if is_usual else ""
    elif not missing:
        is_mirror = right == MIRRORS and "rotation" in extra
        code = "mirror-as-rotation" if is_mirror else "names-another-symmetry"
    found = f"{where} was said to break {names(ours)}; it breaks {names(right)}"
    yield TABLE(code, found, look)


def draw_findings(job: Job, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """How many motions a network that breaks nothing has seen: no test stops before its end."""
    case = job.cases[0]
    if broken_by(case):
        return
    for report in reports:
        for name, count in report.answer["motions"].items():
            if count < DRAWS:
                found = f"{ranks_of(reports)}, a network that {described(case)} saw "
                found += f"{counted(count, f'different {name}')} on rank {report.rank}"
                yield TABLE("too-few-draws", found)
                return


def scenarios(seed: int) -> list[Scenario]:
    """Two ranks with breaks that are easy to see, then one and three."""
    return [
        Scenario(
            name=name,
            body=partial(run, name, job),
            judge=partial(judge, job),
            world_size=len(job.batches),
            deadline_s=20,
            judges_failures=True,
        )
        for name, job in jobs(seed).items()
    ]

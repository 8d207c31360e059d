"""Each task's AUROC over the rows of all ranks, against a comparison of all pairs.

Shards come padded with repeated samples, in uneven sizes, and empty.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .observed import run
from .plan import TASKS, Call, jobs
from .truth import aurocs, of_rows, once, variants

CODES = TABLE.codes
Aurocs = Mapping[int, float]


def judge(
    calls: Sequence[Call], reports: Sequence[RankReport], earlier: object
) -> Iterable[Finding]:
    """The first call that has a finding explains the rest."""
    if any(not report.has_answer for report in reports):
        return first_of(paired_findings(reports), mismatched_collectives(reports))
    return first_of(
        *(call_findings(call, [r.answer[at] for r in reports]) for at, call in enumerate(calls))
    )


def paired_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """gloo ended a rank: a collective of one rank met another one of its peer."""
    for report in reports:
        if report.exitcode == -signal.SIGABRT and "gloo::" in report.output:
            found = f"gloo ended rank {report.rank} of {len(reports)}: its collective met one "
            found += "of another size on another rank"
            yield TABLE("collective-on-some-ranks", found)
            return


def call_findings(call: Call, results: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """One call on all ranks."""
    where = f"on {len(results)} ranks, with {call.kind}, "
    for rank, result in enumerate(results):
        if result["problem"]:
            found = f"{where}rank {rank} {result['problem']}"
            yield TABLE("wrong-return-value", found)
            return
    found_on = [dict(result["aurocs"]) for result in results]
    yield from first_of(
        auroc_findings(call, found_on[0], where),
        undefined_findings(call, results[0], where),
        median_findings(call, results[0], where),
        rank_findings(results, where),
    )


def is_close(ours: float, right: float) -> bool:
    """Whether two sums of the same pairs differ by rounding only."""
    return math.isclose(ours, right, abs_tol=1e-6)


def agree(ours: Aurocs, theirs: Aurocs) -> bool:
    """Whether two results have the same tasks and values."""
    return ours.keys() == theirs.keys() and all(is_close(ours[t], theirs[t]) for t in ours)


def listed_values(values: Aurocs) -> str:
    """ "0: 0.7312, 2: 0.5000"."""
    return some([f"{task}: {value:.4f}" for task, value in sorted(values.items())]) or "none"


def auroc_findings(call: Call, ours: Aurocs, where: str) -> Iterator[Finding]:
    """The values of the defined tasks."""
    right = aurocs(call.shards)
    if agree(ours, right):
        return
    values = f"{where}the AUROCs by task were {listed_values(ours)}"
    for variant in variants(call.shards):
        # A task that the mistake alone makes defined, or undefined, belongs to it.
        if agree(ours, variant.aurocs):
            found = f"{values}: those {variant.words}. They are {listed_values(right)}"
            yield TABLE(variant.code, found)
            return
    if ours.keys() != right.keys():
        found = f"{where}tasks {some(sorted(ours)) or 'none'} had an AUROC; those with a pair "
        yield TABLE("undefined-task", f"{found}are {some(sorted(right)) or 'none'}")
        return
    rows = once([row for shard in call.shards for row in shard])
    low, high = of_rows(rows, tie=0), of_rows(rows, tie=1)
    if all(low[t] - 1e-6 <= ours[t] <= high[t] + 1e-6 for t in ours):
        found = f"{values}. They are {listed_values(right)}; the difference is in pairs with "
        yield TABLE("ties-not-half", f"{found}equal scores")
        return
    yield TABLE("wrong-auroc", f"{values}. They are {listed_values(right)}")


def undefined_findings(call: Call, result: dict[str, Any], where: str) -> Iterator[Finding]:
    """The tasks without a pair."""
    right = sorted({*range(TASKS)} - {*aurocs(call.shards)})
    if result["undefined"] != right:
        found = f"{where}undefined was {result['undefined']}; the tasks without a pair are "
        yield TABLE("undefined-task", f"{found}{right}")


def median_findings(call: Call, result: dict[str, Any], where: str) -> Iterator[Finding]:
    """The median over the defined tasks."""
    values = sorted(aurocs(call.shards).values())
    middle = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
    right = sum(middle) / len(middle) if middle else None
    ours = result["median"]
    if (ours is None) != (right is None) or (
        ours is not None and right is not None and not is_close(ours, right)
    ):
        found = f"{where}the median was {ours}; that of the {len(values)} defined tasks is "
        yield TABLE("wrong-median", f"{found}{right}")


def rank_findings(results: Sequence[dict[str, Any]], where: str) -> Iterator[Finding]:
    """All ranks return what rank 0 does."""
    for rank, result in enumerate(results):
        if not (
            agree(dict(result["aurocs"]), dict(results[0]["aurocs"]))
            and result["undefined"] == results[0]["undefined"]
            and result["median"] == results[0]["median"]
        ):
            found = f"{where}rank {rank} returned AUROCs "
            found += f"{listed_values(dict(result['aurocs']))}, and rank 0 "
            yield TABLE("ranks-differ", found + listed_values(dict(results[0]["aurocs"])))
            return


def scenarios(seed: int) -> list[Scenario]:
    """Three ranks, and two."""
    return [
        Scenario(
            name=name,
            body=partial(run, calls),
            judge=partial(judge, calls),
            world_size=len(calls[0].shards),
            deadline_s=6,
            judges_failures=True,
        )
        for name, calls in jobs(seed).items()
    ]

"""Whole scaffolds on one side, on all ranks; molecules merged before anything is counted.

Each rank has some of the rows. The calls of a job repeat the same molecules: the same rows,
other orders, other measurements; and neighboring ranks come from interpreters with different
hash seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import first_of

from .codes import TABLE
from .merge_findings import label_findings, scaler_findings
from .observed import run
from .plan import Job, jobs
from .split_findings import (
    form_findings,
    fraction_findings,
    job_findings,
    molecule_findings,
    repeat_findings,
    side_findings,
)

CODES = TABLE.codes


def judge(
    job: Job, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The first part that has a finding explains the rest."""
    if any(not report.has_answer for report in reports):
        return mismatched_collectives(reports)
    results = [[report.answer[at] for report in reports] for at in range(len(job.calls))]
    by_call = list(zip(job.calls, results, strict=True))
    return first_of(
        *(form_findings(*both) for both in by_call),
        *(molecule_findings(*both) for both in by_call),
        *(side_findings(*both) for both in by_call),
        *(fraction_findings(*both) for both in by_call),
        repeat_findings(job.calls, results),
        *(
            job_findings([report.answer[0] for report in before], results[0])
            for before in earlier.values()
        ),
        *(label_findings(*both) for both in by_call),
        *(scaler_findings(*both) for both in by_call),
    )


def scenarios(seed: int) -> list[Scenario]:
    """Three ranks, and two."""
    return [
        Scenario(
            name=name,
            body=partial(run, job),
            judge=partial(judge, job),
            world_size=job.world_size,
            deadline_s=8,
            judges_failures=True,
        )
        for name, job in jobs(seed).items()
    ]

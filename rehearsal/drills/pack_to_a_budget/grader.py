"""Rows packed up to a budget, cut into steps, dealt to ranks, resumed anywhere; and one row.

Two processes, with different global generators, make the rows of one, two and three ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import first_of

from .codes import TABLE
from .observed import run
from .plan import Plan, plans
from .rank_findings import deal_findings, fetch_findings, resumed_run_findings
from .row_findings import (
    fill_findings,
    order_findings,
    pack_findings,
    refusal_findings,
    reproducible_findings,
    run_findings,
)

CODES = TABLE.codes


def judge(plan: Plan, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The first part that has a finding explains the rest."""
    answer = reports[0].answer
    alone = answer["by_world"]["1"][0]
    return first_of(
        reproducible_findings(reports),
        run_findings(plan, alone),
        fill_findings(plan, alone),
        order_findings(plan, answer["orders"]),
        *(deal_findings(alone, by_rank) for by_rank in answer["by_world"].values()),
        fetch_findings(plan, answer["fetched"]),
        *(resumed_run_findings(alone, resumed) for resumed in answer["resumes"]),
        refusal_findings(plan, answer["refusals"]),
        *(
            pack_findings(plan, row, packed)
            for row, packed in zip(plan.rows, answer["packed"], strict=True)
        ),
    )


def scenarios(seed: int) -> list[Scenario]:
    """Lengths that leave room in a row, and lengths that fill it."""
    return [
        Scenario(
            name=name,
            body=partial(run, plan),
            judge=partial(judge, plan),
            world_size=2,
            deadline_s=12,
        )
        for name, plan in plans(seed).items()
    ]

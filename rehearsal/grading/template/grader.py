"""Every rank gets the mean of all ranks, in one collective.

The check draws its numbers from a seed, so that no answer fits only those it was tried with.

A judge reads report.answer, which is what the body returned, and report.of(kind): the rank's
events of that kind, in order. These kinds are recorded, with these fields (docs/extending.md
says when); a body may add its own with context.record("kind", field=...).

    @EVENTS@
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable

FOUND = FindingTable(
    {  # code: what it means, the rule, where to look
        "not-the-mean": (
            "a rank returns something other than the mean over all ranks",
            "every rank gets the mean of all ranks' values",
            "at what is summed, and at what the sum is divided by",
        ),
        "extra-collective": (
            "a rank issues more than one collective",
            "a mean over ranks needs one collective",
            "at the numbers that every rank knows without asking",
        ),
    }
)
CODES = FOUND.codes


class Plan(NamedTuple):
    """What one check draws from its seed."""

    world_size: int
    values: Sequence[float]  # one per rank


def plan_of(seed: int) -> Plan:
    """The same in the caller's process and in each rank."""
    draw = random.Random(seed)
    world_size = draw.choice((2, 3))
    # Quarters: their sums are exact, so every order of adding them up gives the same mean.
    return Plan(world_size, [draw.randrange(1, 40) / 4 for _ in range(world_size)])


def mean_of(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Runs in every rank. What it returns travels to the judge as plain data."""
    context.init_group()
    return learner.mean_over_ranks(plan.values[context.rank])


def judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Runs once the job has ended, outside the ranks, on what they recorded."""
    expected = sum(plan.values) / len(plan.values)
    for report in reports:
        who = f"rank {report.rank} of {len(reports)}"
        if not isinstance(report.answer, float) or abs(report.answer - expected) > 1e-5:
            yield FOUND(
                "not-the-mean", f"{who} returned {report.answer}; the mean is {expected:g}"
            )
        elif len(report.collectives) > 1:
            names = ", ".join(event["name"] for event in report.collectives)
            yield FOUND("extra-collective", f"{who} issued {names}")


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check: on several ranks, and on one."""
    several = plan_of(seed)
    one = several._replace(world_size=1, values=several.values[:1])
    return [
        Scenario(
            name=name,
            body=partial(mean_of, plan),
            judge=partial(judge, plan),
            world_size=plan.world_size,
            deadline_s=6,
        )
        for name, plan in (("several ranks", several), ("one rank", one))
    ]

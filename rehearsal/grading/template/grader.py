"""Every rank gets the mean of all ranks, in one collective.

A judge reads report.answer, which is what the body returned, and report.of(kind): the rank's
events of that kind, in order. These kinds are recorded, with these fields (docs/extending.md
says when); a body may add its own with context.record("kind", field=...).

    @EVENTS@
"""

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

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


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Runs in every rank. What it returns travels to the judge as plain data."""
    context.init_group()
    return learner.mean_over_ranks((context.rank + 1) / 10)


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Runs once the job has ended, outside the ranks, on what they recorded."""
    expected = (len(reports) + 1) / 20
    for report in reports:
        who = f"rank {report.rank} of {len(reports)}"
        # Tenths are rounded differently in float32, and differently again in another order.
        is_float = isinstance(report.answer, float)
        if not is_float or abs(report.answer - expected) > 1e-12:
            yield FOUND(
                "not-the-mean", f"{who} returned {report.answer}; the mean is {expected:g}"
            )
        elif len(report.collectives) > 1:
            names = ", ".join(event["name"] for event in report.collectives)
            yield FOUND("extra-collective", f"{who} issued {names}")


SCENARIOS = [
    Scenario(name="three ranks", body=body, judge=judge, world_size=3, deadline_s=6),
    Scenario(name="one rank", body=body, judge=judge, world_size=1, deadline_s=6),
]

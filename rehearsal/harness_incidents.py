"""What graders of find-the-bug drills share: standing still, and weights that must match.

Imported by their judges: plain data only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rehearsal.evidence import RankReport
from rehearsal.harness import Weights, largest_difference
from rehearsal.verdict import Finding, is_echo


def stood_still(
    reports: Sequence[RankReport], code: str = "collective-on-some-ranks"
) -> Iterable[Finding]:
    """A finding if ranks waited, or fell, because not all issued the same collectives.

    None for an exception of the learner's own, or for a rank that left: the engine tells those.
    """
    if any(report.failure and not is_echo(report) for report in reports):
        return
    if any(report.exitcode is not None and not _spoke(report) for report in reports):
        return
    counts = [Counter(entry["group"] for entry in report.collectives) for report in reports]
    uneven = [
        group
        for group in sorted(set().union(*counts))
        if len({count[group] for count in counts}) > 1
    ]
    if not uneven or all(report.has_answer for report in reports):
        return
    ranks = ", ".join(str(report.rank) for report in reports)
    told = [
        f"{', '.join(str(count[group]) for count in counts)} in group {group!r}"
        for group in uneven
    ]
    waiting = [report for report in reports if not report.has_answer]
    last = [
        f"rank {report.rank} waits in {entry['name']} of {entry['elements']} element(s)"
        for report in waiting
        for entry in report.collectives[-1:]
    ]
    returned = [str(report.rank) for report in reports if report.has_answer]
    last += [f"rank {', '.join(returned)} has returned"] if returned else []
    yield Finding(
        code,
        f"the run stands still: ranks {ranks} have issued {'; and '.join(told)}. "
        + "; ".join(last),
        "a collective ends when every rank of its group has issued it",
        "at your innermost line in the stack of each rank: who comes there, and who does not?",
    )


def _spoke(report: RankReport) -> bool:
    return report.has_answer or report.failure is not None


def weights_finding(
    code: str, who: str, ours: Weights, theirs: Weights, most: float, rule: str, look: str
) -> Iterable[Finding]:
    """A finding if two sets of weights differ by more than ``most``."""
    difference, name = largest_difference(ours, theirs)
    if not difference <= most:
        yield Finding(code, f"{who} by up to {difference:.2g}, in {name}", rule, look)


def steps_taken(report: RankReport) -> int:
    """Optimizer steps up to the event "trained": what the body does then is not theirs."""
    kinds = [event["kind"] for event in report.events]
    end = kinds.index("trained") if "trained" in kinds else len(kinds)
    return kinds[:end].count("optimizer_step")

"""Did all ranks issue the same collectives, and how many bytes did they carry?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, is_echo, named_ranks


def mismatched_collectives(
    reports: Sequence[RankReport], code: str = "collective-on-some-ranks"
) -> Iterator[Finding]:
    """A finding if ranks hung or failed because not all of them issued the same collectives.

    No finding for the learner's own exception or a rank that exited: the engine reports those.
    """
    if any(report.failure and not is_echo(report) for report in reports):
        return
    if any(
        report.exitcode is not None and not report.has_answer and report.failure is None
        for report in reports
    ):
        return
    issued = [
        [(entry["group"], entry["name"], entry["elements"]) for entry in report.collectives]
        for report in reports
    ]
    if all(report.has_answer for report in reports) or all(own == issued[0] for own in issued):
        return
    differing = []
    for group in sorted({entry[0] for own in issued for entry in own}):
        counts = [sum(entry[0] == group for entry in own) for own in issued]
        if len(set(counts)) > 1:
            *first, final = map(str, counts)
            numbers = f"{', '.join(first)} and {final}"
            differing.append(f"{numbers} collectives in group {group!r}")
    last = [
        f"rank {report.rank} "
        + ("is still running" if report.exitcode is None else "lost the connection to a peer")
        + f" (last collective: {entry['name']} of {counted(entry['elements'], 'element')})"
        for report in reports
        if not report.has_answer
        for entry in report.collectives[-1:]
    ]
    returned = [report.rank for report in reports if report.has_answer]
    if returned:
        has = "has" if len(returned) == 1 else "have"
        last.append(f"{named_ranks(returned)} {has} returned")
    failures = [report.failure for report in reports if report.failure]
    outcome, look = "hangs", "at the last line of your code in each rank's stack"
    if all(report.exitcode is not None for report in reports):  # no stacks are shown then
        outcome, look = "failed", f"at {failures[0].where or 'each collective in your code'}"
    yield Finding(
        code,
        f"the run {outcome}: {named_ranks([report.rank for report in reports])} issued "
        + (
            "; and ".join(differing)
            or "the same number of collectives, but not the same sequence"
        )
        + f". {'; '.join(last)}",
        "a collective completes only when every rank of its group has issued it",
        f"{look}: which ranks get there, and which do not?",
    )

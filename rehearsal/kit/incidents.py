"""What graders of find-the-bug drills share: standing still, and weights that must match.

Imported by their judges: plain data only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import Weights, largest_difference
from rehearsal.grading.verdict import Finding, is_echo


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
    issued = [
        [(entry["group"], entry["name"], entry["elements"]) for entry in report.collectives]
        for report in reports
    ]
    if all(report.has_answer for report in reports) or all(own == issued[0] for own in issued):
        return
    ranks = ", ".join(str(report.rank) for report in reports)
    told = []
    for group in sorted({entry[0] for own in issued for entry in own}):
        counts = [sum(entry[0] == group for entry in own) for own in issued]
        if len(set(counts)) > 1:
            told.append(f"{', '.join(map(str, counts))} collectives in group {group!r}")
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
        f"the run stands still: ranks {ranks} have issued "
        + ("; and ".join(told) or "as many collectives, but not the same")
        + f". {'; '.join(last)}",
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


def same_run(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """A finding if "weights" and "expected" of the ranks' answers differ."""
    for report in reports:
        difference, name = largest_difference(
            report.answer["weights"], report.answer["expected"]
        )
        if not difference < 1e-4:
            text = f"rank {report.rank}'s weights differ from those of one run by up to "
            text += f"{difference:.2g}, in {name}"
            rule = "being stopped and going on changes nothing"
            look = "at everything that the next step depends on"
            yield Finding("not-the-same-run", text, rule, look)
            return


def ranks_differ(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """A finding if the "weights" of a rank's answer are not those of rank 0."""
    first = reports[0].answer["weights"]
    for report in reports[1:]:
        difference, name = largest_difference(first, report.answer["weights"])
        if not difference <= 1e-6:
            text = f"ranks 0 and {report.rank} of {len(reports)} differ in the end, by up to "
            text += f"{difference:.2g} in {name}"
            rule = "ranks that start alike and follow the same gradients stay alike"
            look = "at each update: which gradients does it use, and were they shared by then?"
            yield Finding("ranks-differ", text, rule, look)
            return


def first_of(*parts: Iterable[Finding]) -> Iterable[Finding]:
    """The findings of the first part that has any: it explains the rest."""
    for part in parts:
        findings = list(part)
        if findings:
            yield from findings
            return


def steps_taken(report: RankReport, until: str = "trained") -> int:
    """Optimizer steps before an event; by default, before the body's own work afterwards."""
    kinds = [event["kind"] for event in report.events]
    end = kinds.index(until) if until in kinds else len(kinds)
    return kinds[:end].count("optimizer_step")

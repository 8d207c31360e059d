"""From evidence to what a learner reads: findings, one of five outcomes, what to do next."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rehearsal.engine.reports import RankReport

Status = Literal["passed", "wrong", "crashed", "hung", "not_attempted"]
SHOWN: dict[str, str] = {
    "passed": "PASSED",
    "wrong": "NOT YET",
    "crashed": "CRASHED",
    "hung": "HUNG",
    "not_attempted": "NOT ATTEMPTED",
}


class Finding(NamedTuple):
    """One thing that is wrong, in terms of the subject; never the answer."""

    code: str  # stable, listed in docs/drills.md
    found: str  # with its numbers
    rule: str
    look: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a check has come to."""

    drill: str
    status: Status
    findings: Sequence[Finding] = ()
    seconds: float = 0.0
    world_sizes: Sequence[int] = ()
    detail: str = ""  # a traceback, or where every rank stood
    after: str = ""  # what to do next; after a pass, one deeper question

    @property
    def facts(self) -> str:
        """On how many ranks, and for how long."""
        ranks = ", ".join(map(str, self.world_sizes))
        before = f"{ranks} rank{'s' if ranks != '1' else ''}, " if ranks else ""
        return f"{before}{self.seconds:.1f} s"

    def __str__(self) -> str:
        lines = [f"{self.drill}   {SHOWN[self.status]}   {self.facts}"]
        for finding in self.findings:
            lines += [f"  {name:<6}{text}" for name, text in finding._asdict().items()]
        lines += [f"  | {line}" for line in self.detail.rstrip().splitlines()]
        lines += [f"  next  {self.after}"] if self.after else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # Colour and word both: nobody has to tell two hues apart. White on it is readable in a
        # light and in a dark theme.
        colour = {"passed": "#0072b2", "not_attempted": "#767676"}.get(self.status, "#b34700")
        pairs = [pair for finding in self.findings for pair in finding._asdict().items()]
        pairs += [("next", self.after)] if self.after else []
        cells = [
            f'<span style="opacity:.75">{name}</span><span>{html.escape(text)}</span>'
            for name, text in pairs
        ]
        detail = f"<pre>{html.escape(self.detail.rstrip())}</pre>" if self.detail else ""
        return (
            f'<div style="border-left:4px solid {colour};padding-left:.8em;max-width:60em">'
            f"<b>{html.escape(self.drill)}</b>&ensp;"
            f'<b style="background:{colour};color:#fff;padding:.1em .5em">'
            f"{SHOWN[self.status]}</b>&ensp;{html.escape(self.facts)}"
            '<div style="display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;'
            f'margin:.4em 0">{"".join(cells)}</div>{detail}</div>'
        )


def failure_verdict(
    reports: Sequence[RankReport], deadline_s: float
) -> tuple[Status, list[Finding], str] | None:
    """What went wrong before there was anything to judge; None if nothing did.

    In the order of what explains what: a name that is missing, a blank, a deadline, a crash.
    """
    for report in reports:
        if report.mismatch:
            findings = [
                Finding(
                    "wrong-signature",
                    f"{name}: {what}",
                    "the check calls these names with these arguments",
                    "at its first line",
                )
                for name, what in report.mismatch
            ]
            return "wrong", findings, ""
    blank = sorted({name for report in reports for name in report.blank})
    if blank:
        text = f"{', '.join(blank)} still raises NotImplementedError"
        rule = "a check judges what has been typed"
        return "not_attempted", [Finding("not-attempted", text, rule, "at the brief")], ""
    late = [report for report in reports if report.exitcode is None]
    if late:
        names = ", ".join(str(report.rank) for report in late)
        stacks = "\n".join(where_it_stood(report) for report in reports)
        found = f"rank {names} of {len(reports)} still ran after {deadline_s:g} s"
        rule = "every rank reaches every collective, and every loop ends"
        look = "at the innermost line of yours in each rank's stack"
        return "hung", [Finding("hung", found, rule, look)], stacks
    failed = [report for report in reports if report.failure]
    causes = [report for report in failed if not is_echo(report)]
    silent = [report for report in reports if not report.has_answer and not report.failure]
    if not causes and silent:
        report = silent[0]
        found = f"rank {report.rank} left with exit code {report.exitcode} before its answer"
        rule = "a rank returns from what is called; it does not end the process"
        look = "at exit, os._exit, abort"
        return "crashed", [Finding("left", found, rule, look)], report.output
    if not causes and failed:
        waiting, done = failed[0], [report for report in reports if report.has_answer]
        where = waiting.failure.where if waiting.failure else ""
        found = f"rank {', '.join(str(r.rank) for r in done)} of {len(reports)} had returned "
        found += f"while rank {waiting.rank} still waited in a collective"
        rule = "all ranks issue the same collectives, in the same order"
        look = f"at {where}: on which ranks, and how often, is it reached?"
        return "crashed", [Finding("peer-returned", found, rule, look)], ""
    if causes:
        report, failure = causes[0], causes[0].failure
        assert failure is not None
        found = f"rank {report.rank}: {failure.kind}: {failure.message.strip()[:300]}"
        rule = "no exception leaves the code that is checked"
        look = f"at {failure.where}" if failure.where else "at the last line of yours below"
        return "crashed", [Finding("crashed", found, rule, look)], failure.traceback
    return None


def where_it_stood(report: RankReport) -> str:
    """One rank of a job that hung: its collectives so far, and its stack if it still ran."""
    issued = report.collectives
    last = f", the last {issued[-1]['name']} of {issued[-1]['bytes']} bytes" if issued else ""
    head = f"[rank {report.rank}] {len(issued)} collective(s){last}; "
    if report.exitcode is not None:
        return head + ("has returned" if report.has_answer else "has failed")
    return head + f"stands at\n{report.stacks or 'an unknown line: it was stopped'}"


def is_echo(report: RankReport) -> bool:
    """Whether a rank failed only because another one was gone."""
    return report.failure is not None and "gloo/transport" in report.failure.message

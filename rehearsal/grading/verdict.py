"""From evidence to what a learner reads: findings, one of five outcomes, what to do next."""

from __future__ import annotations

import html
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
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


# Judges one job: its reports, by rank, and those of the scenarios before it, by name.
Judge = Callable[[Sequence[RankReport], Mapping[str, Sequence[RankReport]]], Iterable[Finding]]


class FindingTable:
    """For each code: what it means, the rule it states, and where it tells you to look.

    TABLE = FindingTable({
        "drops-the-rest": (
            "the last, smaller batch is not trained",
            "an epoch trains every sample once",
            "at how the number of steps is rounded",
        ),
    })
    CODES = TABLE.codes                      # how a grader lists its codes
    yield TABLE("drops-the-rest", "3 of 23 samples were never trained")
    """

    def __init__(self, table: Mapping[str, tuple[str, str, str]]) -> None:
        self._table = dict(table)
        self.codes = {code: meaning for code, (meaning, _, _) in self._table.items()}

    def __call__(self, code: str, found: str, look: str = "") -> Finding:
        """A finding; ``look`` replaces the table's where the evidence knows better."""
        _, rule, usual_look = self._table[code]
        return Finding(code, found, rule, look or usual_look)


MISSING = "is missing"  # what a rank reports of a needed name that is not there
OWN_WORK = "you practice what you type yourself; solution() shows the answer when you ask"
# What any check may find, whatever the drill. A drill's own codes are in its grader's CODES.
ENGINE_FINDINGS = FindingTable(
    {
        "not-attempted": (
            "a needed name is missing, or still raises NotImplementedError as in the blank",
            "a check grades what you have typed; in a notebook, what you have typed and run",
            "at the code that defines it; in a notebook, run that cell before you check",
        ),
        "wrong-signature": (
            "a needed name cannot be called the way the brief says",
            "the check calls these names with exactly these arguments",
            "at the line that begins with def or class, if there is one",
        ),
        "cannot-travel": (
            "something that a needed name uses cannot be sent to another process",
            "your code is sent to the ranks; locks, open files and generators cannot be sent",
            "at the module-level names that your functions use",
        ),
        "crashed": (
            "the code raised an exception; the rank and its traceback are shown",
            "your code must not raise an exception here",
            "at the last line of your code in the traceback",
        ),
        "left": (
            "a rank ended its process instead of returning",
            "a rank ends by returning from the function that was called",
            "at calls to exit, os._exit or abort; gloo also aborts if ranks call different "
            "collectives",
        ),
        "peer-returned": (
            "a rank waits in a collective that another rank never issues",
            "all ranks issue the same collectives, in the same order",
            "at the collective: which ranks reach it, and how often?",
        ),
        "hung": (
            "a rank was still running at the deadline; each rank's stack is shown",
            "every rank reaches every collective, and every loop ends",
            "at the last line of your code in each rank's stack",
        ),
        "server-killed": (
            "the process that starts the ranks was killed while the code ran, twice",
            "a rank's code must not kill other processes",
            "at what it kills, and at its memory: the operating system kills a process that "
            "uses too much",
        ),
        "grader-failed": (
            "the grader itself raised an exception: a defect of this project",
            "a grader judges every attempt; this is our bug, not yours",
            "at the project's issues: please report it there, with the code that was checked",
        ),
        "read-the-solution": (
            "the code opened the drill's files while it was checked",
            OWN_WORK,
            "at the files that your code opens",
        ),
        "imported-not-typed": (
            "the code calls trainer_core's own version of what the drill asks for",
            OWN_WORK,
            "at your imports",
        ),
    }
)
# Former codes of findings, which people's histories still have, and today's codes.
FORMER_CODES = {
    "wrong-step": "different-update",
    "walkthroughs-own": "imported-not-typed",
    "loads-by-itself": "loads-in-the-trainer",
    "epoch-left-out": "epoch-skipped",
    "no-save-at-the-epochs-end": "no-save-at-epoch-end",
    "trains-after-the-end": "finished-run-trains",
    "ranks-apart": "ranks-resume-apart",
    "ranks-alike": "same-noise-on-two-ranks",
    "steps-alike": "same-noise-in-two-steps",
    "noise-begins-again": "noise-repeats",
    "batch-follows-the-world": "batch-follows-world-size",
    "other-steps-left-out": "wrong-steps-skipped",
    "half-a-step": "partial-step",
    "trains-again": "repeats-saved-steps",
    "logs-one-rank": "logs-rank-0-only",
    "padding-trained": "trains-on-padding",
    "left-alone": "leaves-alone",
    "dies-of-sigterm": "killed-by-sigterm",
    "wrong-answer": "wrong-return-value",
    "ranks-start-apart": "ranks-resume-apart",
    "goes-back": "not-the-newest",
    "keeps-the-wrong": "keeps-the-wrong-files",
    "no-evaluation": "wrong-evaluations",
    "dealt-twice": "trained-twice",
    "logs-another-norm": "logs-the-wrong-norm",
    "schedule-begins-again": "schedule-restarts",
    "other-rate": "wrong-rate",
    "other-steps": "wrong-steps",
    "other-loss": "wrong-loss",
    "other-samples": "different-samples",
    "other-noise": "different-noise",
    "other-update": "different-update",
    "another-gradient": "wrong-gradient",
    "another-order": "different-order",
    "another-outcome": "different-outcome",
    "other-failure": "wrong-failure",
    "other-metric": "wrong-metric",
    "damage-not-told": "damage-not-reported",
    "began-again": "started-over",
    "spoilt-line": "corrupted-line",
    "order-by-chance": "order-not-reproducible",
    "died-of-sigterm": "killed-by-sigterm",
    "trains-on": "keeps-training",
    "refuses-the-possible": "refuses-a-valid-start",
}


def current_code(code: str) -> str:
    """Today's name of a finding's code."""
    return FORMER_CODES.get(code, code)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of a check."""

    drill: str
    status: Status
    findings: Sequence[Finding] = ()
    seconds: float = 0.0
    world_sizes: Sequence[int] = ()
    detail: str = ""  # a traceback, or where every rank was stuck
    after: str = ""  # what to do next; after a pass, one deeper question
    seed: int | None = None  # from which the scenarios drew their numbers; None if none ran
    stages: Sequence[str] = ()  # in a drill judged by stages: those that passed
    next_stage: str = ""  # the first stage that hasn't passed
    scenario: str = ""  # the one that ended the check, if it did not pass
    cells: Sequence[int] = ()  # in a notebook: those that were graded, as in In[9]
    pace: str = ""  # time used and the budget, if a clock was started
    then: Sequence[tuple[str, str]] = ()  # after a pass: what to do next, each with its label
    link: tuple[str, str] | None = None  # in a notebook, the next file to open: text, address

    @property
    def is_partial(self) -> bool:
        """Whether everything typed so far is right, but something is left to type."""
        return self.status == "not_attempted" and bool(self.stages)

    @property
    def shown(self) -> str:
        """The status in words."""
        return "PASSED SO FAR" if self.is_partial else SHOWN[self.status]

    @property
    def reached(self) -> str:
        """How far the stages got: "config, data: pass. Next: who am I?"."""
        if not self.next_stage:
            return f"all {len(self.stages)} stages pass" if self.stages else ""
        passed = f"{', '.join(self.stages)}: pass. " if self.stages else ""
        label = "Next" if self.status == "not_attempted" else "Not yet"
        end = "" if self.next_stage.endswith("?") else "."
        return f"{passed}{label}: {self.next_stage}{end}"

    @property
    def after_label(self) -> str:
        """What ``after`` is: advice, or after a pass, an interviewer's question."""
        return "they may ask" if self.status == "passed" else "next"

    @property
    def facts(self) -> str:
        """What was graded, on how many ranks, for how long, and from which seed."""
        ranks = ", ".join(map(str, self.world_sizes))
        found = [f"{ranks} rank{'s' if ranks != '1' else ''}"] if ranks else []
        found += [f"{self.seconds:.1f} s"]
        found += [f"seed {self.seed}"] if self.seed is not None else []
        found += [f"graded {named_cells(self.cells)}"] if self.cells else []
        return ", ".join(found)

    @property
    def ending(self) -> list[tuple[str, str]]:
        """The last lines, each with its label: time, and what to do next."""
        after, pace = (self.after_label, self.after), ("time", self.pace)
        # What to do comes last; after a pass, ``after`` is a question.
        pairs = [after, pace, *self.then] if self.status == "passed" else [pace, after]
        return [(label, text) for label, text in pairs if text]

    def __str__(self) -> str:
        lines = [f"{self.drill}   {self.shown}   {self.facts}"]
        lines += [f"  so far  {self.reached}"] if self.reached else []
        for finding in self.findings:
            lines += [f"  {name:<6}{text}" for name, text in finding._asdict().items()]
        lines += [f"  | {line}" for line in self.detail.rstrip().splitlines()]
        lines += [f"  {label:<4}  {text}" for label, text in self.ending]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # The word repeats what the color says, for readers who can't see the difference. White
        # text on these colors is readable in light and dark themes.
        color = {"passed": "#0072b2", "not_attempted": "#767676"}.get(self.status, "#b34700")
        color = "#0072b2" if self.is_partial else color
        pairs = [("so far", self.reached)] if self.reached else []
        pairs += [pair for finding in self.findings for pair in finding._asdict().items()]
        detail = f"<pre>{html.escape(self.detail.rstrip())}</pre>" if self.detail else ""
        link = ""
        if self.link:
            text, address = map(html.escape, self.link)
            link = f'<a href="{address}">{text}</a>'
        return (
            f'<div style="border-left:4px solid {color};padding-left:.8em;max-width:60em">'
            f"<b>{html.escape(self.drill)}</b>&ensp;"
            f'<b style="background:{color};color:#fff;padding:.1em .5em">'
            f"{self.shown}</b>&ensp;{html.escape(self.facts)}"
            f"{_grid(pairs)}{detail}{_grid(self.ending)}{link}</div>"
        )


def _grid(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels and texts in two columns."""
    cells = [
        f'<span style="opacity:.75">{label}</span><span>{html.escape(text)}</span>'
        for label, text in pairs
    ]
    style = "display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;margin:.4em 0"
    return f'<div style="{style}">{"".join(cells)}</div>' if cells else ""


def cheat_findings(reports: Sequence[RankReport]) -> list[Finding]:
    """A finding if the code used an answer that is not the learner's own."""
    for report in reports:
        for event in report.of("peek")[:1]:
            found = f"the code opened {event['path']} while it was checked"
            return [ENGINE_FINDINGS("read-the-solution", found)]
    for report in reports:
        for event in report.of("answer")[:1]:
            found = f"rank {report.rank} called {event['module']}.{event['name']}, "
            found += "which is the answer to this drill"
            return [ENGINE_FINDINGS("imported-not-typed", found)]
    return []


def failure_verdict(
    reports: Sequence[RankReport], deadline_s: float
) -> tuple[Status, list[Finding], str] | None:
    """What went wrong before there was anything to judge; None if nothing did.

    Causes before their effects: a missing name, a blank, a deadline, a crash.
    """
    for report in reports:
        if report.mismatch:
            missing = [name for name, what in report.mismatch if what == MISSING]
            wrong = [
                ENGINE_FINDINGS("wrong-signature", f"{name} {what}")
                for name, what in report.mismatch
                if what != MISSING
            ]
            if not missing:
                return "wrong", wrong, ""
            # Half of it is typed: what is wrong with that half comes along.
            nothing = ENGINE_FINDINGS("not-attempted", missing_text(missing))
            return "not_attempted", [*wrong, nothing], ""
    if blank := sorted({name for report in reports for name in report.blank}):
        verb = "raises" if len(blank) == 1 else "raise"
        found = f"{listed(blank)} still {verb} NotImplementedError"
        return "not_attempted", [ENGINE_FINDINGS("not-attempted", found)], ""
    late = [report.rank for report in reports if report.exitcode is None]
    failed = [report for report in reports if report.failure]
    causes = [report for report in failed if not is_echo(report)]
    if late:
        stacks = "\n".join(state_when_hung(report) for report in reports)
        was = "was" if len(late) == 1 else "were"
        found = f"{named_ranks(late)} of {len(reports)} {was} still running after "
        found += f"{deadline_s:g} s"
        look = ""
        if causes and (failure := causes[0].failure):  # what the others may be waiting for
            found += f"; rank {causes[0].rank} had raised {failure.kind}: "
            found += shortened(failure.message)
            look = f"at {failure.where}" if failure.where else ""
            stacks += f"\n\n{failure.traceback}"
        return "hung", [ENGINE_FINDINGS("hung", found, look)], stacks
    silent = [report for report in reports if not report.has_answer and not report.failure]
    if not causes and silent:
        report = silent[0]
        found, look = f"{how_it_ended(report)} before it returned", ""
        if report.exitcode == -signal.SIGKILL:
            look = "at what your code kills, and at its memory: the operating system kills a "
            look += "process that uses too much"
        elif "gloo::" in report.output:
            look = "at the collectives: do all ranks issue the same ones, with equal sizes?"
        return "crashed", [ENGINE_FINDINGS("left", found, look)], report.output
    if not causes and failed:
        waiting, done = failed[0], [report.rank for report in reports if report.has_answer]
        where = waiting.failure.where if waiting.failure else ""
        if done:
            found = f"{named_ranks(done)} of {len(reports)} had returned while rank "
            found += f"{waiting.rank} was still waiting in a collective"
        else:
            found = f"{named_ranks([report.rank for report in failed])} lost the connection to "
            found += "a peer in a collective"
        look = f"at {where}: which ranks reach it, and how often?" if where else ""
        return "crashed", [ENGINE_FINDINGS("peer-returned", found, look)], ""
    if causes:
        report, failure = causes[0], causes[0].failure
        assert failure is not None
        found = f"rank {report.rank}: {failure.kind}: {shortened(failure.message)}"
        finding = ENGINE_FINDINGS("crashed", found, f"at {failure.where}")
        if not failure.where:  # the check raised it, on what it was given
            rule = (
                "what your code returns and defines must have the form that the brief describes"
            )
            look = "at what your code returns or defines: no line of it is in the traceback"
            finding = finding._replace(rule=rule, look=look)
        return "crashed", [finding], failure.traceback
    return None


def how_it_ended(report: RankReport) -> str:
    """ "rank 1 exited with code 3", "rank 1 was ended by SIGABRT"."""
    code = report.exitcode or 0
    if code >= 0:
        return f"rank {report.rank} exited with code {code}"
    numbers = {int(number): number.name for number in signal.Signals}
    return f"rank {report.rank} was ended by {numbers.get(-code, f'signal {-code}')}"


def shortened(message: str, most: int = 300) -> str:
    """A message on one line, and no longer than ``most`` characters."""
    line = " ".join(message.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def missing_text(names: Sequence[str]) -> str:
    """ "run is not defined", "a and b are not defined"."""
    return f"{listed(names)} {'are' if len(names) > 1 else 'is'} not defined"


def named_cells(numbers: Sequence[int]) -> str:
    """ "cell [9]", "cells [5] and [9]"."""
    return f"cell{'s' * (len(numbers) > 1)} {listed([f'[{number}]' for number in numbers])}"


def counted(count: int, noun: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def named_ranks(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0 and 2", "ranks 0, 1 and 2"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])}"


def state_when_hung(report: RankReport) -> str:
    """One rank of a job that hung: its collectives so far, and its stack if it still ran."""
    issued = report.collectives
    last = f" (the last: {issued[-1]['name']}, {issued[-1]['bytes']} bytes)" if issued else ""
    after = f"after {counted(len(issued), 'collective')}{last}"
    if report.exitcode is not None:
        return f"[rank {report.rank}] {'returned' if report.has_answer else 'failed'} {after}"
    where = report.stacks or "an unknown line: it did not report its stack"
    return f"[rank {report.rank}] stuck {after}, at\n{where}"


def is_echo(report: RankReport) -> bool:
    """Whether a rank failed only because another one was gone."""
    return report.failure is not None and "gloo/transport" in report.failure.message

"""Are the reported times those that passed, and the percentiles right? Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some
from .findings import FOUND
from .plan import PHASES, TimersPlan

SLACK_MS = 0.3  # difference between two clocks
MEANS = {
    "p50": "by nearest rank, p50 is the smallest value that half of the values don't exceed",
    "p95": "by nearest rank, p95 is the smallest value that 95% of the values don't exceed",
    "max": "max is the largest of the values",
}


def timers_findings(
    plan: TimersPlan, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """The reported times, against those that passed."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    for raised, left in answer["left"]:
        found = f"a phase's block raised {raised}('bad batch'), and {left} left the block"
        yield FOUND("swallowed", found)
    wanted: list[list[int]] = [[]]
    for step in plan.steps:
        if step.is_read_inside:
            wanted.append([])
        wanted[-1].append(step.number)
        if step.is_read:
            wanted.append([])
    got = [[step for step, _ in part] for part in answer["read"]]
    if got != wanted:
        due = ", then ".join(some(part) or "none" for part in wanted)
        found = (
            f"each time read was called, these steps were closed and new: {due}. It yielded "
        )
        yield FOUND("steps-read", found + ", then ".join(some(part) or "none" for part in got))
        return
    rows = [row for part in answer["read"] for row in part]
    for number, spent in rows:
        yield from odd_phases(number, spent)
    for (number, _, spans), (_, spent) in zip(answer["steps"], rows, strict=True):
        for name in PHASES[:-1]:
            least, most = spans.get(name, [0.0, 0.0])
            if not least - SLACK_MS <= spent[name] <= most + SLACK_MS:
                found = f"{name} in step {number} is reported as {spent[name]:.2f} ms; "
                if name in spans:
                    found += f"{least:.2f} to {most:.2f} ms passed in blocks of that phase"
                    yield FOUND("phase-time", found)
                else:
                    found += "the step has no block of that phase"
                    yield FOUND("phase-time", found, "at how a block's time gets to its step")
    for (number, total, _), (_, spent) in zip(answer["steps"], rows, strict=True):
        whole = sum(spent.values())
        if not total[0] - SLACK_MS <= whole <= total[1] + SLACK_MS:
            found = f"the phases of step {number} add up to {whole:.2f} ms; the step took "
            yield FOUND("time-lost", f"{found}{total[0]:.2f} to {total[1]:.2f} ms")
    for steps, (summary, is_same) in zip(plan.tables, answer["tables"], strict=True):
        if not is_same:
            found = "summarize_timers changed the order or the values of the "
            yield FOUND("changes-its-input", f"{found}{len(steps)} steps")
        yield from table_findings(steps, summary)


def odd_phases(step: Any, spent: Mapping[Any, Any]) -> Iterator[Finding]:
    """A step whose phases are not exactly PHASES, or whose times are not numbers."""
    if names := differing_phases(spent):
        look = "at where a step gets its phases"
        yield FOUND("steps-read", f"read yielded step {step}, which {names}", look)
        return
    for name in PHASES:
        if as_number(spent[name]) is None:
            found = f"read yielded step {step}, in which the time of {name} is "
            look = "at how you compute that time"
            yield FOUND("steps-read", f"{found}{shown(spent[name])}, not a number", look)
            return


def differing_phases(named: Mapping[Any, Any]) -> str:
    """ "lacks h2d", "has the unknown phase loader"; empty if the names are PHASES."""
    lacks = [name for name in PHASES if name not in named]
    unknown = sorted(str(name) for name in named if name not in PHASES)
    phase = "phase" if len(unknown) == 1 else "phases"
    said = [f"lacks {some(lacks, 8)}"] if lacks else []
    said += [f"has the unknown {phase} {some(unknown)}"] if unknown else []
    return " and ".join(said)


def shown(value: Any) -> str:
    """Its repr, or the beginning of it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_number(value: Any) -> float | None:
    """The value as a float; None if it isn't a number."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def ordinal(number: int) -> str:
    """ "1st", "12th", "23rd"."""
    last = 0 if number // 10 % 10 == 1 else number % 10
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(last, 'th')}"


def table_findings(steps: Sequence[Any], summary: Any) -> Iterator[Finding]:
    """Nearest ranks, by hand."""
    over = f"over {counted(len(steps), 'step')}"
    if not isinstance(summary, Mapping):
        found = f"{over}, summarize_timers returned {shown(summary)}, not a mapping"
        yield FOUND("percentile", found)
        return
    if not steps and not summary:
        return
    names = differing_phases(summary)
    if names or not steps:
        names = names if steps and summary else "has phases" if summary else "is empty"
        yield FOUND("percentile", f"{over}, the summary {names}")
        return
    for name in PHASES:
        if not isinstance(summary[name], Mapping):
            found = f"{over}, the summary of {name} is {shown(summary[name])}, "
            yield FOUND("percentile", found + "not a mapping")
            return
        column = sorted(step[name] for step in steps)
        for key, place in (
            ("p50", -(-len(column) // 2)),
            ("p95", -(-19 * len(column) // 20)),
            ("max", len(column)),
        ):
            got = as_number(summary[name].get(key))
            if got is None or not abs(got - column[place - 1]) < 1e-3:
                said = f"reported as {got} ms"
                if got is None:
                    said = f"{shown(summary[name].get(key))}, not a number"
                if key not in summary[name]:
                    said = "missing"
                found = f"the {key} of {name} {over} is {said}; by nearest rank it is the "
                found += f"{ordinal(place)} of the sorted values, {column[place - 1]} ms"
                look = "at which of the sorted values you take"
                yield FOUND("percentile", found, look)._replace(rule=MEANS[key])
                return

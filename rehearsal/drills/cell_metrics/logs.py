"""Is each event in every sink, once and complete, and still there after a kill? Plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some
from .findings import FOUND
from .plan import LogsPlan, without_infinities
from .timers import as_number


def logs_findings(
    plan: LogsPlan, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """Each event once and complete in every sink, and still there after a kill."""
    answer = reports[0].answer
    yield from delivery_findings(plan, answer)
    for name in plan.sinks:
        rows = answer["files"][name].splitlines() if name != "list" else []
        who = f"the JsonlSink on {name} wrote"
        for place, row in enumerate(rows):
            yield from event_findings(plan, answer, who, plan.before[place], row)
    lists = [at for at, name in enumerate(plan.sinks, 1) if name == "list"]
    for number, rows in zip(lists, answer["seen"], strict=True):
        for place, row in enumerate(rows):
            yield from event_findings(
                plan, answer, f"sink {number} got", plan.before[place], row
            )
    if answer["common"] != repr(dict(plan.common)):
        found = f"logging an event changed the log's common fields to {answer['common']}"
        yield FOUND("event-incomplete", found, "at which mapping you update")
    yield from kill_findings(plan, answer)
    for restart in answer["restarts"]:
        yield from restart_findings(plan, restart)
    for left, text in enumerate(answer["begun"]):
        yield from begun_findings(plan, left, text)


def delivery_findings(plan: LogsPlan, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether each sink got as many events as were logged."""
    count, logged = len(plan.before), f"steps {some(plan.before)} were logged"
    lists = [at for at, name in enumerate(plan.sinks, 1) if name == "list"]
    for number, rows in zip(lists, answer["seen"], strict=True):
        if len(rows) != count:
            found = f"{count} events were logged to {len(plan.sinks)} sinks, and sink {number} "
            yield FOUND("sink-left-out", f"{found}got {len(rows)}")
            return
    for name, text in answer["files"].items():
        lines = text.splitlines()
        steps = steps_of(lines)
        if len(steps) < count and None not in steps:
            # The restarts close their sinks, so nothing of theirs is in a buffer.
            later = steps_of(answer["restarts"][0]["text"].splitlines())
            look = "" if {*plan.after} & {*later} else "at what emit writes, and where to"
            is_cut_off = bool(steps) and steps == [*plan.before[: len(steps)]]
            killed = {*steps_of(answer["killed"].splitlines())}
            if not is_cut_off and {*plan.killed} <= killed:  # so a sink alone loses nothing
                found = f"{logged} to {len(plan.sinks)} sinks; {name} has {len(steps)} of them"
                look = "at the loop over the sinks, and at what two JsonlSinks share"
                yield FOUND("sink-left-out", found, look)
                return
            yield lost(logged, lines, look)
            return
        if len(steps) != count and None in steps:
            at = steps.index(None)
            found = (
                f"{count} events were logged, and {name} has {counted(len(steps), 'line')}; "
            )
            found += f"line {at + 1} is no event: {lines[at][:120]!r}"
            yield FOUND("not-json", found, "at what emit writes for one event")
            return
        if len(steps) != count:
            found = (
                f"{count} events were logged, and {name} has {counted(len(steps), 'line')}, "
            )
            found += f"of steps {some(steps, 9)}"
            look = "at what emit writes for one event, and at who calls it"
            yield FOUND("sink-left-out", found, look)
            return


def kill_findings(plan: LogsPlan, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """What is in the log after a process that appended to it was killed."""
    lines = answer["killed"].splitlines()
    steps = steps_of(lines)
    before, all_steps = [*plan.before], [*plan.before, *plan.killed]
    if steps[: len(before)] != before:
        found = (
            f"steps {some(before)} were in the file; after a second start it contains steps "
        )
        yield FOUND("overwritten", f"{found}{some(steps, 9) or 'none'}")
    elif [step for step in steps if step is not None] != all_steps:
        yield lost(
            f"steps {before[0]} to {all_steps[-1]} were logged, then came a SIGKILL", lines
        )
    elif None in steps:
        found = (
            f"a second start appended to a complete log, and line {steps.index(None) + 1} is "
        )
        found += f"no event: {lines[steps.index(None)][:120]!r}"
        yield FOUND("corrupted-line", found)


def restart_findings(plan: LogsPlan, restart: Mapping[str, Any]) -> Iterator[Finding]:
    """What two starts leave in a log whose last line was cut, and a kill during them."""
    kept, last = [*plan.before, *plan.killed[:-1]], plan.killed[-1]
    left, size = restart["left"], restart["of"]
    # A start may end the cut line, or remove it.
    allowed: list[list[Any]] = [[*kept], [*kept, None]]
    what = f"{left} of the {size} bytes of"
    if left == size:
        kept, allowed, what = [*kept, last], [[*kept, last]], "all of"
    elif left == size - 1:
        allowed, what = [[*kept], [*kept, last]], "all but the line break of"
    steps = steps_of(restart["text"].splitlines())
    if steps[: len(kept)] != kept:
        found = f"a log had steps {some(kept, 9)}; after two more starts it contains steps "
        yield FOUND("overwritten", f"{found}{some(steps, 9) or 'none'}")
    elif steps not in [[*begin, *plan.after] for begin in allowed]:
        logged = some([*plan.before, *plan.killed], 9)
        found = f"a log had steps {logged}, and {what} the last line. "
        found += f"Two starts logged steps {some(plan.after)}; now the lines have the steps "
        found += f"{some(steps, 12)} (None: not an event)"
        finding = FOUND("corrupted-line", found)
        if [step for step in steps if step is not None] == [*kept, *plan.after]:
            rule = "every line is an event, except for one that a kill has truncated"
            finding = finding._replace(rule=rule)
        yield finding
    for where, text in restart["killed"]:
        remaining = steps_of(text.splitlines())
        if remaining[: len(kept)] != kept:
            found = f"a log had steps {some(kept, 9)}; a kill {where}, while a JsonlSink is "
            found += f"opened, would leave the steps {some(remaining, 9) or 'none'}"
            look = "at what you do to the file before the first event"
            yield FOUND("lost-lines", found, look)


def begun_findings(plan: LogsPlan, left: int, text: str) -> Iterator[Finding]:
    """What a start makes of a log that a kill left empty, or with one byte."""
    step = plan.after[0]
    allowed = [[step], [None, step]] if left else [[step]]
    if steps_of(text.splitlines()) not in allowed:
        found = f"a kill left a log with {counted(left, 'byte')}; the next start logged step "
        found += f"{step}, and now the file is {text[:120]!r}"
        yield FOUND("corrupted-line", found, "at what decides whether the last line was cut")


def event_findings(
    plan: LogsPlan, answer: Mapping[str, Any], got: str, step: int, row: str
) -> Iterator[Finding]:
    """One event as one sink got it."""
    record = strict(row)
    if record is None and row != "null":
        if bad := infinite_fields(row):
            finding = FOUND(
                "not-json", f"{got} an event in which {bad}", "at numbers that JSON lacks"
            )
            yield finding._replace(
                rule="NaN and infinity become null: strict JSON has no such numbers"
            )
        else:
            yield FOUND("not-json", f"{got} a line that isn't strict JSON: {row[:120]}")
        return
    if not isinstance(record, dict):
        found = f"{got} this instead of a mapping of fields: {row[:120]}"
        yield FOUND("event-incomplete", found, "at what you pass to emit")
        return
    wanted = {"event": plan.event, "step": step, "epoch": plan.epoch}
    given = {**plan.common, **plan.fields}
    wanted |= {name: without_infinities(value) for name, value in given.items()}
    wrong = [n for n, v in wanted.items() if n not in record or not same(record[n], v)]
    wrong += ["time"] if "time" not in record else []
    if wrong:
        said = [f"{n}: {record[n]!r}" if n in record else f"{n}: missing" for n in wrong]
        found = f"{got} an event with missing or wrong fields: {', '.join(said)}"
        yield FOUND("event-incomplete", found)
        return
    logged = as_number(record["time"])
    began, ended = answer["began"], answer["ended"]
    if logged is None or not began - 0.01 <= logged <= ended + 0.01:
        found = f"{got} an event whose time is {record['time']!r}; time.time() was between "
        finding = FOUND(
            "event-incomplete", f"{found}{began:.3f} and {ended:.3f}", "at which clock you read"
        )
        rule = "an event's time is that of time.time(), which other processes can read, too"
        yield finding._replace(rule=rule)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, and of one type: to Python, True equals 1."""
    return json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def strict(line: str) -> Any:
    """The line as a strict JSON parser reads it; None if it rejects it."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(line, parse_constant=refuse)
    except ValueError:
        return None


def infinite_fields(line: str) -> str:
    """ "loss is NaN and phases.h2d is Infinity", if that is all that strict JSON rejects."""
    try:
        record = json.loads(line, parse_constant=lambda name: f"[{name}]")
    except ValueError:
        return ""
    return " and ".join(f"{path} is {value[1:-1]}" for path, value in constants("", record))


def constants(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Where in a record the numbers are that JSON lacks."""
    if value in ("[NaN]", "[Infinity]", "[-Infinity]"):
        yield path, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from constants(f"{path}.{name}" if path else name, part)
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from constants(f"{path}[{at}]", part)


def steps_of(lines: Sequence[str]) -> list[Any]:
    """The step of each line; None where there is no event."""
    records = [strict(line) for line in lines]
    return [r.get("step") if isinstance(r, dict) else None for r in records]


def lost(what: str, lines: Sequence[str], look: str = "") -> Finding:
    """A finding about emitted lines that are not in the file."""
    steps = steps_of(lines)
    found = f"{what}; the file is empty"
    if lines:
        found = f"{what}; the lines in the file have the steps {some(steps, 9)}"
        found += " (None: not an event)" * (None in steps)
    return FOUND("lost-lines", found, look)

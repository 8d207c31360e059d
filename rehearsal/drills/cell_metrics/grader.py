"""Phases against a clock of our own, percentiles by hand, a log whose writer is killed."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted

CODES = {
    "swallowed": "a phase swallows an exception raised in its block",
    "phase-time": "a phase's time is not the time spent in its blocks",
    "time-lost": "the phases of a step do not add up to its wall time",
    "steps-read": "read does not yield each closed step once, in order, with all phases",
    "percentile": "a p50, p95 or max is not the one by nearest rank",
    "changes-its-input": "summarize_timers changes the steps it is given",
    "not-json": "a strict JSON parser rejects a line",
    "event-incomplete": "a field of an event is missing or has the wrong value",
    "sink-left-out": "not every sink gets every event exactly once",
    "lost-lines": "events logged before a kill are not in the file",
    "corrupted-line": "a truncated line corrupts the first event after a restart",
    "overwritten": "a new start overwrites earlier lines",
}
PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()
SLACK_MS = 0.3  # difference between two clocks
KEPT = [7, 8, 9, 10, 11, 12]  # steps whose lines are complete when the last one is truncated
Span = list[float]  # at least and at most, in milliseconds


class Watch:
    """Bounds for the time of each phase and step, from clocks inside and outside of it."""

    def __init__(self, learner: SimpleNamespace) -> None:
        self.phase, self.before = learner.phase, time.perf_counter()
        self.timers = learner.StepTimers(SimpleNamespace(type="cpu"))
        self.after = time.perf_counter()
        self.spans: dict[str, Span] = {}
        self.steps: list[Any] = []

    def block(self, name: str, seconds: float, error: Exception | None = None) -> None:
        """Run a block of that length; with ``error``, one that raises it."""
        outside, least = time.perf_counter(), 0.0
        try:
            with self.phase(self.timers, name):
                inside = time.perf_counter()
                time.sleep(seconds)
                least = time.perf_counter() - inside
                if error is not None:
                    raise error
        finally:
            span = self.spans.setdefault(name, [0.0, 0.0])
            span[0] += 1e3 * least
            span[1] += 1e3 * (time.perf_counter() - outside)

    def end_step(self, step: int) -> None:
        """Close the step and record its bounds."""
        before = time.perf_counter()
        self.timers.end_step(step)
        after = time.perf_counter()
        total = [1e3 * (before - self.after), 1e3 * (after - self.before)]
        self.steps.append([step, total, self.spans])
        self.spans, self.before, self.after = {}, before, after

    def read(self) -> list[Any]:
        """What the timers report about the closed steps."""
        return [[step, dict(spent)] for step, spent, *_ in self.timers.read()]


def phases_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Four steps: repeated blocks, an exception, time between two steps, an empty step."""
    close_the_answer(
        context,
        "trainer_core.metrics",
        ["StepTimers", "phase", "summarize_timers", "log_rank_event"],
    )
    close_the_answer(context, "trainer_core.json_lines", ["JsonlSink"])
    watch = Watch(learner)
    watch.block("data_wait", 0.003)
    time.sleep(0.004)
    for _ in range(2):
        watch.block("forward", 0.002)
    left = ""
    try:
        watch.block("h2d", 0.002, ValueError("bad batch"))
    except ValueError as error:
        left = str(error)
    watch.block("backward", 0.001)
    watch.end_step(1)
    time.sleep(0.003)
    watch.block("checkpoint", 0.006)
    watch.end_step(2)
    watch.end_step(3)
    first = watch.read()
    watch.block("optimizer", 0.002)
    watch.end_step(4)
    read = [first, watch.read(), watch.read()]
    random_steps = random.Random(5)
    tables = []
    for count in (20, 1, 7, 0, 41, 201):
        steps = [
            {p: round(random_steps.lognormvariate(1, 2), 3) for p in PHASES}
            for _ in range(count)
        ]
        copy = json.loads(json.dumps(steps))
        tables.append([copy, learner.summarize_timers(steps), steps == copy])
    return {"left": left, "read": read, "steps": watch.steps, "tables": tables}


def phases_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The reported times, against those that passed."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    if answer["left"] != "bad batch":
        left = f"ValueError({answer['left']!r})" if answer["left"] else "no exception"
        yield Finding(
            "swallowed",
            f"a phase's block raised ValueError('bad batch'), and {left} left the block",
            "measuring doesn't change what is measured",
            "at what happens at the end of the block",
        )
    first, second, third = answer["read"]
    got = [[step for step, _ in part] for part in (first, second, third)]
    if got != [[1, 2, 3], [4], []]:
        yield Finding(
            "steps-read",
            "read was called after step 3, after step 4, and again; it yielded steps "
            f"{', then '.join(some(part) or 'none' for part in got)}",
            "read yields each closed step once, with all phases",
            "at what end_step keeps, and at what read removes",
        )
        return
    for step, spent in first + second:
        yield from odd_phases(step, spent)
    for (step, total, spans), (_, spent) in zip(answer["steps"], first + second, strict=True):
        for name in PHASES[:-1]:
            least, most = spans.get(name, [0.0, 0.0])
            if not least - SLACK_MS <= spent[name] <= most + SLACK_MS:
                took = f"{least:.2f} to {most:.2f} ms passed in blocks of that phase"
                yield Finding(
                    "phase-time",
                    f"{name} in step {step} is reported as {spent[name]:.2f} ms; "
                    + (took if name in spans else "the step has no block of that phase"),
                    "a phase gets the wall-clock time of all its blocks in that step, even if "
                    "one raises",
                    "at where a block starts and ends, at which clock you read, and at how its "
                    "time gets to the step"
                    if name in spans
                    else "at how a block's time gets to its step",
                )
        whole = sum(spent.values())
        if not total[0] - SLACK_MS <= whole <= total[1] + SLACK_MS:
            yield Finding(
                "time-lost",
                f"the phases of step {step} add up to {whole:.2f} ms; the step took "
                f"{total[0]:.2f} to {total[1]:.2f} ms",
                "the phases add up to the step, and no time is lost between two steps",
                "at time that no phase claims, and at when a step begins",
            )
    for steps, summary, is_same in answer["tables"]:
        yield from table_findings(steps, summary)
        if not is_same:
            yield Finding(
                "changes-its-input",
                f"summarize_timers changed the order or the values of the {len(steps)} steps",
                "a summary only reads",
                "at what you sort",
            )


def odd_phases(step: Any, spent: Mapping[Any, Any]) -> Iterator[Finding]:
    """A step whose phases are not exactly PHASES, or whose times are not numbers."""
    rule = "read yields each closed step once, with all phases"
    if names := differing_phases(spent):
        yield Finding(
            "steps-read",
            f"read yielded step {step}, which {names}",
            rule,
            "at where a step gets its phases",
        )
        return
    for name in PHASES:
        if as_number(spent[name]) is None:
            yield Finding(
                "steps-read",
                f"read yielded step {step}, in which the time of {name} is "
                f"{shown(spent[name])}, not a number",
                rule,
                "at how you compute that time",
            )
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


def table_findings(steps: Sequence[Any], summary: Any) -> Iterator[Finding]:
    """Nearest ranks, by hand."""
    over = f"over {counted(len(steps), 'step')}"
    rule = (
        "a summary has p50, p95 and max for each of PHASES, or is empty if there are no steps"
    )
    look = "at what summarize_timers returns"
    if not isinstance(summary, Mapping):
        found = f"{over}, summarize_timers returned {shown(summary)}, not a mapping"
        yield Finding("percentile", found, rule, look)
        return
    if not steps and not summary:
        return
    names = differing_phases(summary)
    if names or not steps:
        names = names if steps and summary else "has phases" if summary else "is empty"
        yield Finding("percentile", f"{over}, the summary {names}", rule, look)
        return
    for name in PHASES:
        if not isinstance(summary[name], Mapping):
            found = f"{over}, the summary of {name} is {shown(summary[name])}, "
            yield Finding("percentile", found + "not a mapping", rule, look)
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
                yield Finding(
                    "percentile",
                    f"the {key} of {name} {over} is {said}; by nearest rank it is number "
                    f"{place} of the sorted values, {column[place - 1]} ms",
                    "max is the largest of the values"
                    if key == "max"
                    else "by nearest rank, p95 is the smallest value that 95% of the values "
                    "don't exceed",
                    "at which of the sorted values you take",
                )
                return


# ---------------------------------------------------------------- events


def events_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Events to three sinks; a process that is killed; a truncated line; two more starts."""
    seen: list[list[Any]] = [[], []]
    common = {"rank": 1, "attempt": 2, "run_id": "ab"}
    path = context.folder / "logs" / "rank-1.jsonl"
    path.parent.mkdir()
    sinks: list[Any] = [
        SimpleNamespace(emit=lambda record, rows=rows: rows.append(dumped(record)), close=bool)
        for rows in seen
    ]
    sinks.insert(1, learner.JsonlSink(path))
    path.touch()
    log = learner.RankLog(sinks, common)
    fields = {
        "loss": math.nan,
        "grad_norm": math.inf,
        "lr": 0.5,
        "note": "a\nb",
        "skipped": True,
    }
    began = time.time()
    for step in (7, 8):
        learner.log_rank_event(
            log, "train_progress", step=step, epoch=0, count=step, phases={"h2d": 0.1}, **fields
        )
    ended, alive = time.time(), path.read_text()
    pid = os.fork()
    if pid == 0:
        log = learner.RankLog([learner.JsonlSink(path)], {"rank": 1})
        for step in range(9, 14):
            learner.log_rank_event(log, "x", step=step, epoch=1, loss=0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    killed = path.read_text()
    os.truncate(path, max(0, path.stat().st_size - 9))
    for step in (14, 15):  # two starts; the second finds a complete last line
        log = learner.RankLog([learner.JsonlSink(path)], {"rank": 1})
        learner.log_rank_event(log, "run_start", step=step, epoch=1, loss=1.0)
        log.sinks[0].close()
    return {
        "seen": seen,
        "began": began,
        "ended": ended,
        "alive": alive,
        "killed": killed,
        "after": path.read_text(),
        "common": common,
    }


def dumped(record: Any) -> str:
    """What a sink got, as text."""
    return json.dumps(dict(record) if isinstance(record, Mapping) else record, default=str)


def strict(line: str) -> Any:
    """The line as a strict JSON parser reads it; None if it rejects it."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(line, parse_constant=refuse)
    except ValueError:
        return None


def infinite_fields(line: str) -> str:
    """ "loss is NaN and grad_norm is Infinity", if that is all that strict JSON rejects."""
    try:
        record = json.loads(line, parse_constant=lambda name: f"[{name}]")
    except ValueError:
        return ""
    fields = record.items() if isinstance(record, dict) else ()
    bad = [
        f"{n} is {v[1:-1]}" for n, v in fields if v in ("[NaN]", "[Infinity]", "[-Infinity]")
    ]
    return " and ".join(bad)


def events_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Each event once and complete in every sink, and still there after a kill."""
    answer = reports[0].answer
    files = [answer[name].splitlines() for name in ("alive", "killed", "after")]
    first, last = answer["seen"]
    for number, rows in ((1, first), (3, last)):
        if len(rows) != 2:
            yield Finding(
                "sink-left-out",
                f"2 events were logged to 3 sinks, and sink {number} got {len(rows)}",
                "every sink gets every event once",
                "at the loop over the sinks",
            )
            return
    steps = steps_of(files[0])
    if len(steps) < 2 and None not in steps:
        # The last two starts close their sinks, so nothing of theirs is in a buffer.
        look = "" if {14, 15} & {*steps_of(files[2])} else "at what emit writes, and where to"
        yield lost("steps 7 and 8 were logged", files[0], look)
        return
    if len(steps) != 2 and None in steps:
        at = steps.index(None)
        yield Finding(
            "not-json",
            f"2 events were logged, and the file has {counted(len(steps), 'line')}; line "
            f"{at + 1} is no event: {files[0][at][:120]!r}",
            "an event is one line of strict JSON",
            "at what emit writes for one event",
        )
        return
    if len(steps) != 2:
        yield Finding(
            "sink-left-out",
            f"2 events were logged, and the file has {counted(len(steps), 'line')}, of steps "
            f"{some(steps, 9)}",
            "every sink gets every event once",
            "at what emit writes for one event, and at who calls it",
        )
        return
    for number, rows in enumerate([first, files[0], last], start=1):
        for place, row in enumerate(rows):
            found = list(event_findings(answer, number, 7 + place, row))
            yield from found
            if found:
                return
    if answer["common"] != {"rank": 1, "attempt": 2, "run_id": "ab"}:
        yield Finding(
            "event-incomplete",
            f"logging an event changed the log's common fields to {answer['common']}",
            "an event doesn't change the next one",
            "at which mapping you update",
        )
    killed, after = steps_of(files[1]), steps_of(files[2])
    if killed[:2] != [7, 8]:
        yield Finding(
            "overwritten",
            "steps 7 and 8 were in the file; after a second start it contains steps "
            f"{some(killed, 9)}",
            "a log only grows",
            "at how you open the file",
        )
    elif [step for step in killed if step] != [7, 8, 9, 10, 11, 12, 13]:
        yield lost("steps 7 to 13 were logged, then came a SIGKILL", files[1])
    # A start may end the truncated line, or remove it.
    elif None in killed or after not in ([*KEPT, None, 14, 15], [*KEPT, 14, 15]):
        rule = "a kill may truncate the last line; the next event is on a line of its own"
        if [step for step in after if step] == [*KEPT, 14, 15]:
            rule = "every line is an event, except for one that a kill has truncated"
        yield Finding(
            "corrupted-line",
            f"the file had the steps {some(killed, 9)}. The line of step 13 was truncated and "
            "two starts logged steps 14 and 15; now the lines have the steps "
            f"{some(after, 12)} (None: not an event)",
            rule,
            "at how you open a file that ends with a complete line, and one that doesn't",
        )


def event_findings(
    answer: Mapping[str, Any], number: int, step: int, row: str
) -> Iterator[Finding]:
    """One event as one sink got it."""
    got = f"sink {number} got" if number != 2 else "the JsonlSink wrote"
    record = strict(row)
    if record is None and row != "null":
        bad = infinite_fields(row)
        yield Finding(
            "not-json",
            f"{got} an event in which {bad}"
            if bad
            else f"{got} a line that isn't strict JSON: {row[:120]}",
            "NaN and infinity become null: strict JSON has no such numbers"
            if bad
            else "every line is strict JSON, or a reader of the log stops there",
            "at numbers that JSON can't express" if bad else "at what emit writes",
        )
        return
    if not isinstance(record, dict):
        yield Finding(
            "event-incomplete",
            f"{got} this instead of a mapping of fields: {row[:120]}",
            "an event has its time, name, common fields, step, epoch and given fields",
            "at what you pass to emit",
        )
        return
    wanted = {
        "event": "train_progress",
        "rank": 1,
        "attempt": 2,
        "run_id": "ab",
        "step": step,
        "epoch": 0,
        "count": step,
        "loss": None,
        "grad_norm": None,
        "lr": 0.5,
        "note": "a\nb",
        "skipped": True,
        "phases": {"h2d": 0.1},
    }
    wrong = [n for n, v in wanted.items() if record.get(n, "missing") != v]
    wrong += ["time"] if "time" not in record else []
    if wrong:
        said = [f"{n}: {record[n]!r}" if n in record else f"{n}: missing" for n in wrong]
        yield Finding(
            "event-incomplete",
            f"{got} an event with missing or wrong fields: {', '.join(said)}",
            "an event has its time, name, common fields, step, epoch and given fields",
            "at what you put into the record",
        )
        return
    logged = as_number(record["time"])
    began, ended = answer["began"], answer["ended"]
    if logged is None or not began - 0.01 <= logged <= ended + 0.01:
        yield Finding(
            "event-incomplete",
            f"{got} an event whose time is {record['time']!r}; time.time() was between "
            f"{began:.3f} and {ended:.3f}",
            "an event's time is that of time.time(), which other processes can read, too",
            "at which clock you read",
        )


def steps_of(lines: Sequence[str]) -> list[Any]:
    """The step of each line; None where there is no event."""
    records = [strict(line) for line in lines]
    return [r.get("step") if isinstance(r, dict) else None for r in records]


def lost(what: str, lines: Sequence[str], look: str = "") -> Finding:
    """A finding about emitted lines that are not in the file."""
    steps = steps_of(lines)
    return Finding(
        "lost-lines",
        f"{what}; the lines in the file have the steps {some(steps, 9)}"
        + " (None: not an event)" * (None in steps)
        if lines
        else f"{what}; the file is empty",
        "an event is one line, which the operating system has when emit returns, so a kill "
        "can't lose it",
        look or "at who still holds the bytes when emit returns",
    )


SCENARIOS = [
    Scenario(
        name="phases",
        body=phases_body,
        judge=only_first(phases_judge),
        world_size=1,
        deadline_s=5,
        judges_failures=True,
    ),
    Scenario(
        name="events",
        body=events_body,
        judge=only_first(events_judge),
        world_size=1,
        deadline_s=5,
    ),
]

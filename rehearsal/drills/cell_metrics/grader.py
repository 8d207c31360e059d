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
from rehearsal.grading.verdict import Finding

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
        outside = time.perf_counter()
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
    for count in (20, 1, 7, 0, 41):
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
        yield Finding(
            "swallowed",
            "a ValueError raised in a phase's block did not leave the block",
            "measuring doesn't change what is measured",
            "at what happens at the end of the block",
        )
    first, second, third = answer["read"]
    got = [[step for step, _ in part] for part in (first, second, third)]
    odd = sorted({name for _, spent in first + second for name in set(spent) ^ set(PHASES)})
    if got != [[1, 2, 3], [4], []] or odd:
        yield Finding(
            "steps-read",
            "read was called after step 3, after step 4, and again; it yielded steps "
            f"{', then '.join(some(part) or 'none' for part in got)}"
            + (f"; missing or unknown phases: {some(odd)}" if odd else ""),
            "read yields each closed step once, with all phases",
            "at what read keeps and what it removes",
        )
        return
    for (step, total, spans), (_, spent) in zip(answer["steps"], first + second, strict=True):
        for name in PHASES[:-1]:
            least, most = spans.get(name, [0.0, 0.0])
            if not least - SLACK_MS <= spent[name] <= most + SLACK_MS:
                took = f"its block(s) took {least:.2f} to {most:.2f} ms"
                yield Finding(
                    "phase-time",
                    f"{name} in step {step} is reported as {spent[name]:.2f} ms; "
                    + (took if name in spans else "the step has no block of that phase"),
                    "a phase gets the wall-clock time of all its blocks in that step, even if "
                    "one raises",
                    "at where a block starts and ends, and at which clock you read",
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


def table_findings(steps: Sequence[Any], summary: Any) -> Iterator[Finding]:
    """Nearest ranks, by hand."""
    wanted = PHASES if steps else []
    if sorted(summary) != sorted(wanted):
        yield Finding(
            "percentile",
            f"over {len(steps)} step(s) the summary has {some(sorted(summary)) or 'no phases'}",
            "a summary has all of PHASES, or is empty if there are no steps",
            "at which phases you loop over",
        )
        return
    for name in wanted:
        column = sorted(step[name] for step in steps)
        for key, place in (
            ("p50", -(-len(column) // 2)),
            ("p95", -(-19 * len(column) // 20)),
            ("max", len(column)),
        ):
            got = summary[name].get(key, math.nan)
            if not abs(got - column[place - 1]) < 1e-3:
                said = f"reported as {got} ms" if key in summary[name] else "missing"
                yield Finding(
                    "percentile",
                    f"the {key} of {name} over {len(column)} step(s) is {said}; "
                    f"by nearest rank it is number {place} of the sorted values, "
                    f"{column[place - 1]} ms",
                    "by nearest rank, p95 is the smallest value that 95% of the values don't "
                    "exceed",
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
    sinks: list[Any] = [SimpleNamespace(emit=s.append, close=lambda: None) for s in seen]
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
        "seen": [[json.dumps(r, default=str) for r in rows] for rows in seen],
        "began": began,
        "ended": ended,
        "alive": alive,
        "killed": killed,
        "after": path.read_text(),
        "common": common,
    }


def strict(line: str) -> Any:
    """The line as a strict JSON parser reads it; None if it rejects it."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(line, parse_constant=refuse)
    except ValueError:
        return None


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
    if len(files[0]) != 2:
        yield lost("steps 7 and 8 were logged", files[0])
        return
    for number, rows in enumerate([first, files[0], last], start=1):
        for row in rows:
            record = strict(row)
            if not isinstance(record, dict):
                yield Finding(
                    "not-json",
                    f"sink {number} got an event that isn't "
                    f"{'strict JSON' if record is None else 'a JSON object'}: {row[:120]}",
                    "every line is strict JSON, or a reader of the log stops there",
                    "at numbers that JSON can't express",
                )
                return
            wanted = {
                "event": "train_progress",
                "rank": 1,
                "attempt": 2,
                "run_id": "ab",
                "epoch": 0,
                "loss": None,
                "grad_norm": None,
                "lr": 0.5,
                "note": "a\nb",
                "skipped": True,
                "phases": {"h2d": 0.1},
            }
            wrong = [n for n, v in wanted.items() if record.get(n, "missing") != v]
            if record.get("step") != record.get("count"):
                wrong.append("step")
            if not answer["began"] - 0.01 <= record.get("time", 0) <= answer["ended"] + 0.01:
                wrong.append("time")
            if wrong:
                got = {name: record.get(name, "missing") for name in wrong}
                yield Finding(
                    "event-incomplete",
                    f"sink {number} got an event in which these fields are wrong: {got}",
                    "an event has its time, name, common fields, step, epoch and given fields",
                    "at what you put into the record",
                )
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
    elif None in killed or after != [7, 8, 9, 10, 11, 12, None, 14, 15]:
        yield Finding(
            "corrupted-line",
            f"the file had the steps {some(killed, 9)}. The line of step 13 was truncated and "
            "two starts logged steps 14 and 15; now the lines have the steps "
            f"{some(after, 12)} (None: not an event)",
            "a kill may truncate the last line; the next event is on a line of its own",
            "at how you open a file that ends with a complete line, and one that doesn't",
        )


def steps_of(lines: Sequence[str]) -> list[Any]:
    """The step of each line; None where there is no event."""
    return [(strict(line) or {}).get("step") for line in lines]


def lost(what: str, lines: Sequence[str]) -> Finding:
    """A finding about emitted lines that are not in the file."""
    steps = steps_of(lines)
    return Finding(
        "lost-lines",
        f"{what}; the file has {len(lines)} line(s), of steps {some(steps, 9)}"
        + " (None: not an event)" * (None in steps)
        if lines
        else f"{what}; the file is empty",
        "an event is one line, which the operating system has when emit returns, so a kill "
        "can't lose it",
        "at who still holds the bytes when emit returns",
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

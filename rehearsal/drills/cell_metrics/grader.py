"""Phases against the clock around them, percentiles by hand, a log whose writer is killed."""

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
    "swallowed": "an exception in a phase does not leave it",
    "phase-time": "a phase is billed another time than passed in its blocks",
    "time-lost": "the phases of a step do not add up to its wall time",
    "steps-read": "closed steps are not handed out once each, in order, with all phases",
    "percentile": "p50, p95 or max is not the nearest rank of its phase",
    "changes-its-input": "summarizing changes the steps it is given",
    "not-json": "a line that a strict JSON reader refuses",
    "event-incomplete": "an event lacks a field, or has another value",
    "sink-left-out": "not every sink gets every event, once",
    "lost-lines": "events that were logged before a kill are not in the file",
    "spoilt-line": "the first event after a restart is lost in a line that a kill had cut",
    "overwritten": "a new start takes the place of earlier lines",
}
PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()
SLACK_MS = 0.3  # between two clocks
Span = list[float]  # at least and at most, in milliseconds


class Watch:
    """Bounds of what a phase or a step can have cost, from the clock inside and outside."""

    def __init__(self, learner: SimpleNamespace) -> None:
        self.phase, self.before = learner.phase, time.perf_counter()
        self.timers = learner.StepTimers(SimpleNamespace(type="cpu"))
        self.after = time.perf_counter()
        self.spans: dict[str, Span] = {}
        self.steps: list[Any] = []

    def block(self, name: str, seconds: float, error: Exception | None = None) -> None:
        """A block of that length; with ``error``, one that raises."""
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
        """Close it and note its bounds."""
        before = time.perf_counter()
        self.timers.end_step(step)
        after = time.perf_counter()
        total = [1e3 * (before - self.after), 1e3 * (after - self.before)]
        self.steps.append([step, total, self.spans])
        self.spans, self.before, self.after = {}, before, after

    def read(self) -> list[Any]:
        """What the timers say of the closed steps."""
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
    """What was billed, against what passed."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    if answer["left"] != "bad batch":
        yield Finding(
            "swallowed",
            "a ValueError was raised in a block, and did not leave it",
            "measuring changes nothing of what is measured",
            "at the end of the block",
        )
    first, second, third = answer["read"]
    got = [[step for step, _ in part] for part in (first, second, third)]
    odd = sorted({name for _, spent in first + second for name in set(spent) ^ set(PHASES)})
    if got != [[1, 2, 3], [4], []] or odd:
        yield Finding(
            "steps-read",
            f"steps 1, 2, 3, read, 4, read, read: got {got}"
            + (f"; phases missing or unknown: {some(odd)}" if odd else ""),
            "each closed step is handed out once, with all phases",
            "at read",
        )
        return
    for (step, total, spans), (_, spent) in zip(answer["steps"], first + second, strict=True):
        for name in PHASES[:-1]:
            least, most = spans.get(name, [0.0, 0.0])
            if not least - SLACK_MS <= spent[name] <= most + SLACK_MS:
                yield Finding(
                    "phase-time",
                    f"step {step}, {name}: {spent[name]:.2f} ms billed, "
                    f"{least:.2f} to {most:.2f} ms passed in its block(s)",
                    "a phase is billed what passes in its blocks: in all, in their own "
                    "step, also when a block fails",
                    "at the block's borders, and the clock",
                )
        whole = sum(spent.values())
        if not total[0] - SLACK_MS <= whole <= total[1] + SLACK_MS:
            yield Finding(
                "time-lost",
                f"step {step}: its phases add up to {whole:.2f} ms, it took "
                f"{total[0]:.2f} to {total[1]:.2f} ms",
                "the phases add up to the step, and no time falls between two steps",
                "at what no phase claims, and at when a step begins",
            )
    for steps, summary, is_same in answer["tables"]:
        yield from table_findings(steps, summary)
        if not is_same:
            yield Finding(
                "changes-its-input",
                f"{len(steps)} steps have another order or other values",
                "a summary only reads",
                "at what is sorted",
            )


def table_findings(steps: Sequence[Any], summary: Any) -> Iterator[Finding]:
    """Nearest ranks, by hand."""
    wanted = PHASES if steps else []
    if sorted(summary) != sorted(wanted):
        yield Finding(
            "percentile",
            f"of {len(steps)} step(s), phases {some(sorted(summary))}",
            "each phase is summarized; no steps, no summary",
            "at the loop",
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
                yield Finding(
                    "percentile",
                    f"{key} of {name} over {len(column)} step(s): {got}; the "
                    f"values around it are {some(column[max(0, place - 2) : place + 1])}",
                    "by nearest rank, p95 is the smallest value that 95 % do not exceed",
                    "at which place of the sorted values is taken",
                )
                return


# ---------------------------------------------------------------- events


def events_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Events to three sinks; a process that is killed; a cut line; another start."""
    seen: list[list[Any]] = [[], []]
    common = {"rank": 1, "attempt": 2, "run_id": "ab"}
    path = context.folder / "logs" / "rank-1.jsonl"
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
    for step in (14, 15):  # two starts; the second finds a whole line
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
    """The line as a reader has it that knows JSON only; None if it refuses."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(line, parse_constant=refuse)
    except ValueError:
        return None


def events_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Each event once, whole, in every sink, and still there after a kill."""
    answer = reports[0].answer
    files = [answer[name].splitlines() for name in ("alive", "killed", "after")]
    first, last = answer["seen"]
    for number, rows in ((1, first), (3, last)):
        if len(rows) != 2:
            yield Finding(
                "sink-left-out",
                f"2 events to 3 sinks: sink {number} got {len(rows)}",
                "every sink gets every event, once",
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
                    f"sink {number}: {row[:120]}",
                    "a line is strict JSON, or the reader of the log stops there",
                    "at numbers that JSON has no word for",
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
                    f"sink {number}: {got}",
                    "an event tells when, what, who and where, and each field with its value",
                    "at what goes into the record",
                )
                return
    if answer["common"] != {"rank": 1, "attempt": 2, "run_id": "ab"}:
        yield Finding(
            "event-incomplete",
            f"the log's common fields became {answer['common']}",
            "an event leaves the next one alone",
            "at what is updated",
        )
    killed, after = steps_of(files[1]), steps_of(files[2])
    if killed[:2] != [7, 8]:
        yield Finding(
            "overwritten",
            f"after a second start the file holds steps {some(killed, 9)}; 7 "
            "and 8 were there before",
            "a log only grows",
            "at how the file is opened",
        )
    elif [step for step in killed if step] != [7, 8, 9, 10, 11, 12, 13]:
        yield lost("steps 7 to 13 were logged, then SIGKILL", files[1])
    elif None in killed or after != [7, 8, 9, 10, 11, 12, None, 14, 15]:
        yield Finding(
            "spoilt-line",
            f"lines by step: {some(killed, 9)}; that of step 13 is cut, two "
            f"starts log steps 14 and 15: {some(after, 12)} (None: no event can be read there)",
            "a kill may cut the last line; the next event is a line of its own",
            "at how a file is taken up, with and without a whole line at its end",
        )


def steps_of(lines: Sequence[str]) -> list[Any]:
    """The step of each line; None where there is no event."""
    return [(strict(line) or {}).get("step") for line in lines]


def lost(what: str, lines: Sequence[str]) -> Finding:
    """Lines that were emitted are not in the file."""
    return Finding(
        "lost-lines",
        f"{what}; the file holds {some(steps_of(lines), 9) or 'none'}",
        "what was logged before a kill is in the kernel's hands, line by line",
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

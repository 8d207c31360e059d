"""Phases against a clock of our own, and summaries. In the rank."""

from __future__ import annotations

import builtins
import copy
import time
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.anti_cheat import close_the_answer
from .plan import TimersPlan

Span = list[float]  # at least and at most, in milliseconds


class Watch:
    """Bounds for the time of each phase and step, from clocks inside and outside of it."""

    def __init__(self, learner: SimpleNamespace) -> None:
        import torch  # not for the caller's process, which imports this module, too

        self.phase, self.before = learner.phase, time.perf_counter()
        self.timers = learner.StepTimers(torch.device("cpu"))
        self.after = time.perf_counter()
        self.spans: dict[str, Span] = {}
        self.steps: list[Any] = []
        self.is_entered = False  # whether the last block began

    def block(self, name: str, seconds: float, error: BaseException | None = None) -> None:
        """Run a block of that length; with ``error``, one that raises it."""
        outside, least, self.is_entered = time.perf_counter(), 0.0, False
        try:
            with self.phase(self.timers, name):
                inside, self.is_entered = time.perf_counter(), True
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


def timers_body(plan: TimersPlan, context: RankContext, learner: SimpleNamespace) -> Any:
    """The steps of the plan, and summaries of its tables."""
    names = ["StepTimers", "phase", "summarize_timers", "log_rank_event"]
    close_the_answer(context, "trainer_core.metrics", names)
    close_the_answer(context, "trainer_core.json_lines", ["JsonlSink"])
    watch = Watch(learner)
    left, read = [], []
    for step in plan.steps:
        time.sleep(step.idle_ms / 1e3)
        for at, block in enumerate(step.blocks):
            error = getattr(builtins, block.error)("bad batch") if block.error else None
            try:
                watch.block(block.phase, block.ms / 1e3, error)
            except BaseException as caught:
                if error is None or not watch.is_entered:
                    raise
                if caught is not error:
                    left.append([block.error, f"{type(caught).__name__}: {caught}"])
            else:
                if error is not None:
                    left.append([block.error, "no exception"])
            if at == 0:
                if step.is_read_inside:
                    read.append(watch.read())
                time.sleep(step.idle_ms / 1e3)
        watch.end_step(step.number)
        if step.is_read:
            read.append(watch.read())
    read.append(watch.read())
    tables = []
    for steps in plan.tables:
        given = copy.deepcopy(list(steps))
        summary = learner.summarize_timers(given)
        tables.append([summary, given == steps])
    return {"left": left, "read": read, "steps": watch.steps, "tables": tables}

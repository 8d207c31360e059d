import json
import math
import os
import time
from collections import namedtuple
from contextlib import contextmanager

PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()
RankLog = namedtuple("RankLog", "sinks common")


class StepTimers:
    """Sums instead of stamps: what a phase has cost so far in the current step."""

    def __init__(self, device):
        self.closed, self.spent = [], dict.fromkeys(PHASES, 0.0)
        self.begun = time.monotonic_ns()

    def end_step(self, step):
        now = time.monotonic_ns()
        total = (now - self.begun) / 1e6
        self.spent["other"] += total - sum(self.spent.values())
        self.closed.append((step, self.spent))
        self.spent, self.begun = {name: 0.0 for name in PHASES}, now

    def read(self):
        closed, self.closed = self.closed, []
        return iter(closed)


@contextmanager
def phase(timers, name):
    before = time.monotonic_ns()
    try:
        yield
    finally:
        timers.spent[name] += (time.monotonic_ns() - before) / 1e6


def nearest(values, percent):
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def summarize_timers(steps):
    summary = {}
    for name in PHASES if steps else ():
        column = [step[name] for step in steps]
        summary[name] = {"p50": nearest(column, 50), "p95": nearest(column, 95)}
        summary[name]["max"] = max(column)
    return summary


class JsonlSink:
    """An unbuffered descriptor; the next start removes a line that a kill truncated."""

    def __init__(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with open(path, "rb") as file:
            os.ftruncate(self.fd, file.read().rfind(b"\n") + 1)

    def emit(self, record):
        os.write(self.fd, (json.dumps(record, allow_nan=False) + "\n").encode())

    def close(self):
        os.close(self.fd)


def cleaned(value):
    if type(value) in (dict, list):
        pairs = value.items() if type(value) is dict else enumerate(value)
        found = {key: cleaned(part) for key, part in pairs}
        return found if type(value) is dict else [*found.values()]
    is_bad = isinstance(value, float) and (math.isnan(value) or math.isinf(value))
    return None if is_bad else value


def log_rank_event(log, event, *, step, epoch, **fields):
    record = dict(log.common, time=time.time(), event=event, step=step, epoch=epoch, **fields)
    for sink in log.sinks:
        sink.emit(cleaned(record))

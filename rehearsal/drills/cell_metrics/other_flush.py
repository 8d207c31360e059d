import contextlib
import json
import time
from dataclasses import dataclass

import numpy as np
import torch

PHASES = [
    "data_wait",
    "h2d",
    "forward",
    "backward",
    "grad_sync",
    "optimizer",
    "checkpoint",
    "other",
]


@dataclass
class RankLog:
    sinks: list
    common: dict


class StepTimers:
    def __init__(self, device):
        self.now = {"cpu": time.perf_counter}[torch.device(device).type]
        self.blocks, self.ends = [], [(0, self.now())]

    def end_step(self, step):
        self.ends.append((step, self.now()))

    def read(self):
        """Blocks belong to the step in which they ended."""
        for (_, start), (step, end) in zip(self.ends, self.ends[1:]):
            rows = [(n, b - a) for n, a, b in self.blocks if start <= b < end]
            spent = {name: 1e3 * sum(s for n, s in rows if n == name) for name in PHASES}
            spent["other"] = 1e3 * (end - start) - sum(spent.values())
            yield step, spent
        self.ends = self.ends[-1:]
        self.blocks = [block for block in self.blocks if block[2] >= self.ends[0][1]]


class phase(contextlib.ContextDecorator):
    def __init__(self, timers, name):
        self.timers, self.name = timers, name

    def __enter__(self):
        self.begin = self.timers.now()
        return self

    def __exit__(self, kind, value, trace):
        self.timers.blocks.append((self.name, self.begin, self.timers.now()))
        return False


def summarize_timers(steps):
    if len(steps) == 0:
        return {}
    table = {name: np.array([step[name] for step in steps]) for name in PHASES}
    shares = {"p50": 50, "p95": 95, "max": 100}
    return {
        name: {k: float(np.percentile(v, q, method="inverted_cdf")) for k, q in shares.items()}
        for name, v in table.items()
    }


class JsonlSink:
    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_cut = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"
        self.file = open(path, "a")
        if is_cut:
            self.emit_text("")

    def emit_text(self, text):
        self.file.write(text + "\n")
        self.file.flush()

    def emit(self, record):
        self.emit_text(json.dumps(record))

    def close(self):
        self.file.close()


def plain(value):
    """Through JSON's own parser, which names each NaN and infinity that it meets."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def log_rank_event(log, event, *, step, epoch, **fields):
    base = {"event": event, "time": time.time(), "step": step, "epoch": epoch}
    [sink.emit(plain({**log.common, **base, **fields})) for sink in log.sinks]

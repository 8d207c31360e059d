"""What one check draws from its seed: blocks to time, times to sum up, events to log."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PHASES = "data_wait h2d forward backward grad_sync optimizer checkpoint other".split()
ERRORS = ("ValueError", "OSError", "StopIteration")
LOG = "rank-1.jsonl"
NOT_FINITE = (math.nan, math.inf, -math.inf)


class Block(NamedTuple):
    """A block of a phase; ``error`` names the exception that leaves it, if any."""

    phase: str
    ms: float
    error: str = ""


class TimedStep(NamedTuple):
    """Blocks, with time that no phase claims before the first of them, and after it."""

    number: int
    blocks: Sequence[Block]
    idle_ms: float
    is_read: bool  # whether read is called after it
    is_read_inside: bool = False  # whether read is called after its first block


class TimersPlan(NamedTuple):
    """The constants of the scenario about timers."""

    steps: Sequence[TimedStep]
    tables: Sequence[Sequence[Mapping[str, float]]]  # milliseconds by phase, for summaries


class LogsPlan(NamedTuple):
    """The constants of the scenario about logs."""

    sinks: Sequence[str]  # "list" or the name of a file
    event: str
    epoch: int
    common: Mapping[str, Any]
    fields: Mapping[str, Any]
    before: Sequence[int]  # steps logged by a process that lives on
    killed: Sequence[int]  # by one that is killed
    after: Sequence[int]  # by the next starts, one each
    cut: float  # where a kill cuts the last line, as a fraction of it


def timers_plan(seed: int) -> TimersPlan:
    """The same in the caller's process and in the rank."""
    draw = random.Random(f"timers {seed}")
    number = draw.choice((0, 1, 8, 98))
    steps = []
    errors = ["KeyboardInterrupt", draw.choice(ERRORS)]  # the first is no Exception
    draw.shuffle(errors)
    # Steps with and without blocks; a phase twice in one of them; blocks that raise.
    for kind in draw.sample(("repeated", "raises", "raises", "none", "one"), 5):
        names = draw.sample(PHASES[:-1], 3)
        blocks = [Block(name, draw.choice((1.5, 2.0, 3.0))) for name in names]
        if kind == "repeated":
            blocks.insert(draw.choice((1, 2, 3)), Block(names[0], 2.5))
        elif kind == "raises":
            at = draw.randrange(len(blocks))
            blocks[at] = blocks[at]._replace(error=errors.pop())
        blocks = {"none": [], "one": blocks[:1]}.get(kind, blocks)
        idle_ms = draw.choice((2.0, 3.0, 4.0)) if blocks else 0.0
        steps.append(TimedStep(number, blocks, idle_ms, draw.random() < 0.4))
        number += 1
    steps[1] = steps[1]._replace(is_read=False)  # so that one call reads several steps
    steps[-1] = steps[-1]._replace(is_read=True)
    inside = draw.choice([at for at in range(2, 5) if len(steps[at].blocks) > 1])
    steps[inside] = steps[inside]._replace(is_read_inside=True)
    counts = [20, 1, 0, draw.randrange(2, 20), draw.randrange(21, 60), draw.randrange(120, 300)]
    scale = draw.choice((0.5, 1.0, 2.0))
    tables = [
        [{p: round(draw.lognormvariate(scale, 1.5), 3) for p in PHASES} for _ in range(count)]
        for count in counts
    ]
    return TimersPlan(steps, tables)


def logs_plan(seed: int) -> LogsPlan:
    """The same in the caller's process and in the rank."""
    draw = random.Random(f"logs {seed}")
    numbers = iter(range(draw.choice((6, 7, 96, 97, 996)), 2000))
    bad = list(NOT_FINITE)
    draw.shuffle(bad)
    fields = {
        "loss": bad[0],
        "grad_norm": bad[1],
        "lr": draw.choice((0.5, 3e-4, 1.0)),
        "note": draw.choice(("a\nb", 'say "NaN"', "100 %", "null")),
        "skipped": draw.random() < 0.5,
        "tokens": 2**53 + draw.randrange(1, 1000, 2),
        "reason": None,
        "phases": {"h2d": draw.randrange(1, 9) / 8, "forward": bad[2]},
        "shards": [draw.randrange(9), {"loss": bad[0]}, [bad[1], 0.25]],
    }
    names = list(fields)
    draw.shuffle(names)
    sinks = ["list", "list", LOG, "rank-1-copy.jsonl"]
    draw.shuffle(sinks)
    budget: Any = draw.choice(NOT_FINITE)
    if draw.random() < 0.5:
        budget = [draw.randrange(9), budget]
    common = {"rank": draw.randrange(4), "attempt": draw.randrange(3), "run_id": "ab"}
    return LogsPlan(
        sinks=sinks,
        event=draw.choice(("train_progress", "validation", "checkpoint_saved")),
        epoch=draw.randrange(5),
        common=common | {draw.choice(("budget_s", "loss_scale", "max_norm")): budget},
        fields={name: fields[name] for name in names},
        # No number above 1 divides both counts: a flush at every n-th line leaves lines out.
        before=[next(numbers) for _ in range(3)],
        killed=[next(numbers) for _ in range(draw.choice((4, 5)))],
        after=[next(numbers), next(numbers)],
        cut=draw.uniform(0.2, 0.8),
    )


def without_infinities(value: Any) -> Any:
    """The value with None for each number that JSON lacks, however deep."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: without_infinities(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_infinities(part) for part in value]
    return value

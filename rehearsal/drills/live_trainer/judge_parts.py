"""The findings about the model, its learning rate and the metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some

from .findings import TABLE, Earlier


def model_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A classifier with dropout that learns, and a learning rate that is a function."""
    answer = reports[0].answer
    shape, batch, classes = answer["shape"], answer["batch"], answer["classes"]
    if len(shape) != 2 or shape[0] != batch or shape[1] < classes:
        found = (
            f"a batch of {batch} samples with {classes} classes gives logits of shape {shape}"
        )
        yield TABLE("wrong-shape", found)
        return
    for what, apart in answer["noise"].items():
        if (apart > 0) != (what == "with dropout"):
            found = f"{what}, two passes over the same batch differ by {apart:.2g}"
            yield TABLE("wrong-dropout", found)
    if answer["unused"]:
        found = "parameters without a gradient after a backward pass: "
        look = "at what takes no part in the logits"
        yield TABLE("does-not-learn", found + some(answer["unused"]), look)
    first, last = answer["losses"]
    if not last < 0.8 * first:
        found = f"60 steps of AdamW on one batch took the loss from {first:.3f} to {last:.3f}; "
        found += "it should fall by at least 20%"
        yield TABLE("does-not-learn", found)
    yield from rate_findings(answer)


def rate_findings(answer: Any) -> Iterator[Finding]:
    """Linearly up, then down."""
    rates, peak, warmup = answer["rates"], answer["peak"], answer["warmup"]
    if rates != answer["rates again"]:
        found = "called for the same steps in a different order, learning_rate_at gives "
        found += "different values"
        yield TABLE("wrong-rate", found, "at what it remembers")
        return
    for step, rate in enumerate(rates, 1):
        before = rates[step - 2] if step > 1 else 0.0
        said = f"with learning_rate={peak:g} and warmup_steps={warmup}, learning_rate_at gives "
        said += f"{rate:.4g} at step {step}"
        wanted = peak * step / warmup
        if step <= warmup and abs(rate - wanted) > 1e-6 * peak:
            yield TABLE("wrong-rate", f"{said}; a linear rise from 0 gives {wanted:.4g}")
            return
        if step > warmup and not 0 < rate < before:
            yield TABLE(
                "wrong-rate", f"{said}, after {before:.4g}; it should fall, and stay positive"
            )
            return


def metrics_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The phases add up, and a line survives."""
    answer = reports[0].answer
    phases, wall = answer["phases"], answer["wall"]
    wrong = [name for name in phases if not isinstance(phases[name], int | float)]
    if wrong:
        found = f"phases[{wrong[0]!r}] is {phases[wrong[0]]!r}"[:160] + ", which isn't a number"
        yield TABLE("wrong-phase", found, "at what you add up")
        return
    total = sum(phases.values())
    shown = {name: round(seconds, 4) for name, seconds in phases.items()}
    least = {"forward": 0.014, "backward": 0.012, "optimizer": 0.009}
    short = [name for name in least if phases.get(name, 0.0) < 0.9 * least[name]]
    if not 0.9 * wall < total < 1.1 * wall:
        found = f"a step took {wall:.3f} s, and its phases {shown} add up to {total:.3f} s"
        look = "at what happens when a phase ends a second time" if short == ["forward"] else ""
        yield TABLE("phases-do-not-add-up", found, look)
        return
    if short:
        found = (
            f"{short[0]} took {least[short[0]]} s in two calls" if short == ["forward"] else ""
        )
        found = found or f"{short[0]} took {least[short[0]]} s"
        yield TABLE("wrong-phase", f"{found}, and phases says {shown}")
    if answer["error"]:
        yield TABLE("line-lost", f"log_rank_event raised {answer['error']}")
        return
    lines = [line for line in answer["lines"] if line]
    try:
        read = [json.loads(line) for line in lines]
    except ValueError:
        read = None
    if read is None or len(lines) != len(answer["facts"]):
        found = f"a SIGKILL right after two events would leave {counted(len(lines), 'line')}"
        if lines and read is None:
            found += f"{', the first:' if len(lines) > 1 else ':'} {lines[0][:60]!r}"
        yield TABLE("line-lost", found)
        return
    for line, fields in zip(read, answer["facts"], strict=True):
        if not isinstance(line, Mapping):
            found = (
                f"given {fields}, log_rank_event wrote {str(line)[:160]}, which has no fields"
            )
            yield TABLE("wrong-line", found)
            return
        wrong = [name for name, value in fields.items() if line.get(name) != value]
        stamp = line.get("time")
        if wrong or not isinstance(stamp, float) or abs(stamp - time.time()) > 600:
            found = f"given {fields}, log_rank_event wrote {str(line)[:160]}: "
            found += (
                f"{some(wrong)} missing or changed"
                if wrong
                else "time isn't the unix time as a float"
            )
            yield TABLE("wrong-line", found)
            return

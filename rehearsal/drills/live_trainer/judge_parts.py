"""The findings about the model, its learning rate and the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some

from .draws import Rates, SmallRun, rates_of_check
from .findings import TABLE, Earlier

CLOCK_S = 0.001  # two clocks may differ by as much
FADED = 1e-100  # of the highest learning rate


def model_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """A classifier with dropout that learns, and a learning rate that is a function."""
    answer = reports[0].answer
    shape, batch, classes = answer["shape"], answer["batch"], answer["classes"]
    if len(shape) != 2 or shape[0] != batch or shape[1] < classes:
        found = (
            f"a batch of {batch} samples with {classes} classes gives logits of shape {shape}"
        )
        yield TABLE("wrong-shape", found)
        return
    if answer["unused"]:
        found = "parameters without a gradient after a backward pass: "
        look = "at what takes no part in the logits"
        yield TABLE("does-not-learn", found + some(answer["unused"]), look)
    first, last = answer["losses"]
    if not last < 0.8 * first:
        found = f"60 steps of AdamW on one batch took the loss from {first:.3f} to {last:.3f}; "
        found += "it should fall by at least 20%"
        yield TABLE("does-not-learn", found)
    for what, apart in answer["noise"].items():
        if (apart > 0) != (what == "with dropout"):
            found = f"{what}, two passes over the same batch differ by {apart:.2g}"
            yield TABLE("wrong-dropout", found)
    for asked, found in zip(rates_of_check(plan), answer["rates"], strict=True):
        yield from rate_findings(asked, found)


def rate_findings(asked: Rates, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Linearly up, then down.

    Args:
        answer: the rates, and the same asked for in another order.
    """
    steps = asked.steps
    peak, warmup = asked.settings["learning_rate"], asked.settings["warmup_steps"]
    if "raised" in answer:
        found = f"learning_rate_at(cfg, {answer['step']}) raised {answer['raised']}"
        yield TABLE("wrong-rate", found)
        return
    rates = answer["rates"]
    if rates != answer["again"]:
        found = "called for the same steps in a different order, learning_rate_at gives "
        found += "different values"
        yield TABLE("wrong-rate", found, "at what it remembers")
        return
    for number, (step, rate) in enumerate(zip(steps, rates, strict=True)):
        said = f"with learning_rate={peak:g} and warmup_steps={warmup}, learning_rate_at gives "
        said += f"{rate:.4g} at step {step} of {steps[-1]}"
        wanted = peak * step / warmup
        if step <= warmup and abs(rate - wanted) > 1e-6 * peak:
            yield TABLE("wrong-rate", f"{said}; a linear rise from 0 gives {wanted:.4g}")
            return
        if step > warmup:
            before = rates[number - 1]
            # A power of a small number may become smaller than a float can be.
            has_faded = before < FADED * peak and 0 <= rate <= before
            if not (0 < rate < before or has_faded):
                found = f"{said}, after {before:.4g} at step {steps[number - 1]}"
                yield TABLE("wrong-rate", f"{found}; it should fall, and stay positive")
                return


def metrics_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The phases add up, and a line survives."""
    answer = reports[0].answer
    phases, between = answer["phases"], answer["between"]
    wrong = [name for name in phases if not isinstance(phases[name], int | float)]
    if wrong:
        found = f"phases[{wrong[0]!r}] is {phases[wrong[0]]!r}"[:160] + ", which isn't a number"
        yield TABLE("wrong-phase", found, "at what you add up")
        return
    least, most = sum(low for _, low, _ in between), sum(high for _, _, high in between)
    total = sum(phases.values())
    shown = {name: round(seconds, 4) for name, seconds in phases.items()}
    twice = between[0][0]
    if not least - CLOCK_S <= total <= most + CLOCK_S:
        found = f"a step took {least:.3f} s, and its phases {shown} add up to {total:.3f} s"
        low = sum(low for name, low, _ in between if name == twice)
        is_short = phases.get(twice, 0.0) < low - CLOCK_S
        look = "at what happens when a phase ends a second time" if is_short else ""
        yield TABLE("phases-do-not-add-up", found, look)
        return
    for name in dict.fromkeys(name for name, _, _ in between):
        calls = [(low, high) for of, low, high in between if of == name]
        low, high = map(sum, zip(*calls, strict=True))
        if not low - CLOCK_S <= phases.get(name, 0.0) <= high + CLOCK_S:
            found = f"{name} took {low:.4f} s" + " in two calls" * (len(calls) > 1)
            yield TABLE("wrong-phase", f"{found}, and phases says {shown}")
            return
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
        first, last = answer["written"]
        is_time = isinstance(stamp, float) and first - 1 <= stamp <= last + 1
        if wrong or not is_time:
            found = f"given {fields}, log_rank_event wrote {str(line)[:160]}: "
            found += (
                f"{some(wrong)} missing or changed"
                if wrong
                else "time isn't the unix time as a float"
            )
            yield TABLE("wrong-line", found)
            return

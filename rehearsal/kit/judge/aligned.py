"""The steps that a rank without samples has left out, put back where they were.

Such a rank may leave out a step's forward pass, and then nothing shows an update that is
written out. The weights at its beginning, equal on all ranks, say which step it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.weights import Weights, largest_difference

KINDS = ("step_begins", "forward", "optimizer_step")


class _Step(NamedTuple):
    """One step of one rank."""

    before: Weights | None  # None if it had no forward pass
    samples: list[int]
    is_complete: bool = True


def aligned(
    reports: Sequence[RankReport], states: Sequence[Weights] = (), tolerance: float = 0.0
) -> list[RankReport]:
    """The reports with each step on each rank; events of other kinds come first.

    A step that a rank has left out gets the weights from any rank that knows them. Weights
    within ``tolerance`` of one of ``states`` become it.
    """
    near = _nearest_in(states, tolerance)
    by_rank = [
        [step._replace(before=step.before and near(step.before)) for step in _steps_of(report)]
        for report in reports
    ]
    have_ended = [report.answer is not None for report in reports]
    return [
        _report_of(report, steps, near)
        for report, steps in zip(reports, _merged(by_rank, have_ended), strict=True)
    ]


def _nearest_in(states: Sequence[Weights], most: float) -> Callable[[Weights], Weights]:
    """A function from weights to the state that they equal up to ``most``, or else itself."""
    at = 0  # the last one found: a run goes from state to state

    def near(weights: Weights) -> Weights:
        nonlocal at
        if most and weights not in states:
            for number in chain(range(at, len(states)), range(at)):
                if largest_difference(weights, states[number])[0] <= most:
                    at = number
                    return states[number]
        return weights

    return near


def _steps_of(report: RankReport) -> list[_Step]:
    """The steps of one rank, as far as they were recorded."""
    steps: list[_Step] = []
    before: Weights | None = None
    samples: list[int] = []
    for event in report.events:
        if event["kind"] == "step_begins":
            before = before or event["weights"]
        elif event["kind"] == "forward":
            samples = samples + event["samples"]
        elif event["kind"] == "optimizer_step":
            steps.append(_Step(before, samples))
            before, samples = None, []
    return steps + [_Step(before, samples, is_complete=False)] * (before is not None)


def _merged(
    by_rank: Sequence[Sequence[_Step]], have_ended: Sequence[bool]
) -> list[list[_Step]]:
    """The steps of each rank, with those that it has left out."""
    merged: list[list[_Step]] = [[] for _ in by_rank]
    rest = [[*own] for own in by_rank]
    while any(rest):
        heads = [own[0].before for own in rest if own and own[0].before is not None]
        later = [step.before for own in rest for step in own[1:]]
        # The next step is one that no rank takes after another. Ranks that have drifted apart
        # may have none; then each goes on with its own.
        next_ones = [head for head in heads if head not in later] or heads
        before = next_ones[0] if next_ones else None
        for own, steps, has_ended in zip(rest, merged, have_ended, strict=True):
            known = own[0].before if own else None
            if own and (known in (None, before) or known not in later):
                step = own.pop(0)
                steps.append(step._replace(before=step.before or before))
            elif own or has_ended:
                steps.append(_Step(before, []))
    return merged


def _report_of(
    report: RankReport, steps: Iterable[_Step], near: Callable[[Weights], Weights]
) -> RankReport:
    """A report with these steps instead of its own."""
    events = [event for event in report.events if event["kind"] not in KINDS]
    for step in steps:
        if step.before is not None:
            events.append({"kind": "step_begins", "weights": step.before})
        events.append({"kind": "forward", "samples": step.samples})
        events += [{"kind": "optimizer_step"}] * step.is_complete
    answer = report.answer and {**report.answer, "weights": near(report.answer["weights"])}
    return replace(report, events=events, answer=answer)

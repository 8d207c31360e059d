"""Do two models have the same weights?

Weights are what ``observe.samples.weights_of`` writes down: each parameter's bytes, as hex.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding

Weights = Mapping[str, str]  # parameter: the bytes of its float32 values, as hex
STAY_EQUAL = "ranks that start with equal weights and apply the same updates stay equal"


def numbers(text: str) -> list[float]:
    """The float32 values of one parameter."""
    values = array("f")
    values.frombytes(bytes.fromhex(text))
    return list(values)


def largest_difference(ours: Weights, theirs: Weights) -> tuple[float, str]:
    """The largest difference between two sets of weights, and the parameter that has it.

    NaN if one of the weights is NaN. Infinity if parameters have different names or sizes.
    """
    if ours.keys() != theirs.keys():
        return float("inf"), ", ".join(sorted(ours.keys() ^ theirs.keys()))
    worst = (0.0, "")
    for name in ours:
        if len(ours[name]) != len(theirs[name]):
            return float("inf"), name
        for a, b in zip(numbers(ours[name]), numbers(theirs[name]), strict=True):
            difference = abs(a - b)
            if math.isnan(difference):  # any comparison with it is False
                return difference, name
            if difference > worst[0]:
                worst = (difference, name)
    return worst


def weights_differ(
    code: str, who: str, ours: Weights, theirs: Weights, most: float, rule: str, look: str
) -> Iterator[Finding]:
    """A finding if two sets of weights differ by more than ``most``.

    Args:
        who: the beginning of the sentence, up to "differ" or "differs".
    """
    difference, name = largest_difference(ours, theirs)
    if difference <= most:
        return
    found = f"{who} by up to {difference:.2g}, in {name}"
    if ours.keys() != theirs.keys():
        found = f"{who}: their parameters have different names ({name})"
    elif len(ours[name]) != len(theirs[name]):
        found = f"{who}: {name} has different sizes"
    elif not math.isfinite(difference):
        found = f"{who}, or can't be compared: {name} has NaNs or infinities"
    yield Finding(code, found, rule, look)


def ranks_differ(
    weights: Sequence[Weights],
    look: str = "at each update: which gradients does it use, and are they already reduced?",
    *,
    most: float = 1e-6,
    where: str = "",
    rule: str = STAY_EQUAL,
    ranks: Sequence[int] | None = None,
) -> Iterator[Finding]:
    """A finding if a rank's weights differ from those of rank 0 by more than ``most``.

    Args:
        weights: of each rank, by rank.
        where: the beginning of the sentence, as "without a restart, ".
        ranks: whose weights they are, if not those of all ranks.
    """
    names = range(len(weights)) if ranks is None else ranks
    for rank, theirs in zip(names[1:], weights[1:], strict=True):
        who = f"{where}the weights of ranks {names[0]} and {rank}"
        who += f" of {len(weights)} differ" if ranks is None else " differ"
        findings = list(
            weights_differ("ranks-differ", who, weights[0], theirs, most, rule, look)
        )
        yield from findings
        if findings:
            return


def weights_of_ranks(reports: Sequence[RankReport]) -> list[Weights]:
    """The "weights" of each rank's answer."""
    return [report.answer["weights"] for report in reports]


def differs_from_one_run(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if "weights" and "expected" of a rank's answer differ."""
    for report in reports:
        findings = list(
            weights_differ(
                "not-the-same-run",
                f"rank {report.rank}'s weights differ from those of one uninterrupted run",
                report.answer["weights"],
                report.answer["expected"],
                1e-4,
                "stopped and resumed, a run ends with the weights of an uninterrupted one",
                "at everything that the next step depends on",
            )
        )
        yield from findings
        if findings:
            return

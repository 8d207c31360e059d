"""Which samples did each step train, and did each epoch train every sample once?

Read from the events "forward", which ``observe.samples.watch_samples`` records, and
"optimizer_step".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks
from rehearsal.kit.judge.findings import some


def steps_taken(report: RankReport, until: str = "trained") -> int:
    """A rank's optimizer steps before an event; by default, before the body's own work."""
    kinds = [event["kind"] for event in report.events]
    end = kinds.index(until) if until in kinds else len(kinds)
    return kinds[:end].count("optimizer_step")


def most_steps(reports: Sequence[RankReport]) -> int:
    """Optimizer steps of the rank that took the most."""
    return max(len(report.of("optimizer_step")) for report in reports)


def trained_by_step(report: RankReport) -> list[list[int]]:
    """Samples of each optimizer step of one rank: those of the forward passes before it."""
    steps: list[list[int]] = [[]]
    for event in report.events:
        if event["kind"] == "forward":
            steps[-1] += event["samples"]
        elif event["kind"] == "optimizer_step":
            steps.append([])
    return steps if steps[-1] else steps[:-1]


def samples_by_step(reports: Sequence[RankReport]) -> list[list[int]]:
    """Samples of each step over all ranks, sorted."""
    by_rank = [trained_by_step(report) for report in reports]
    steps: list[list[int]] = [[] for _ in range(max(map(len, by_rank)))]
    for of_rank in by_rank:
        for step, samples in zip(steps, of_rank, strict=False):
            step += samples
    return [sorted(step) for step in steps]


class Miscounted(NamedTuple):
    """Samples that were trained too often, and samples that were trained too rarely."""

    extra: list[int]
    missing: list[int]


def steps_in_stream(report: RankReport, num_ranks: int, share: int) -> list[int]:
    """The steps of a rank's forward passes, by the samples of a ``SampleStream``."""
    passes = [event["samples"] for event in report.of("forward")]
    return [samples[0] // (share * num_ranks) for samples in passes if samples]


def miscounted(samples: Iterable[int], num_samples: int, times: int = 1) -> Miscounted:
    """Which of ``num_samples`` samples do not occur exactly ``times`` times."""
    counts = Counter(samples)
    return Miscounted(
        [sample for sample in range(num_samples) if counts[sample] > times],
        [sample for sample in range(num_samples) if counts[sample] < times],
    )


def how_often(
    extra: Sequence[int],
    missing: Sequence[int],
    num_samples: int,
    epochs: int,
    *,
    within: str = "",
) -> str:
    """ "2 of 23 samples were trained more than twice in 2 epochs: 4, 7"; extra ones first.

    Args:
        within: what to say instead of "2 epochs", such as "epoch 1".
    """
    wrong, times = extra or missing, {1: "once", 2: "twice"}.get(epochs, f"{epochs} times")
    less = "fewer" if epochs > 2 else "less"  # fewer than 3 times, less than twice
    how = f"trained {'more' if extra else less} than {times}"
    if not extra and epochs == 1:
        how = "never trained"
    was = "was" if len(wrong) == 1 else "were"
    found = f"{len(wrong)} of {num_samples} samples {was} {how} in "
    found += within or counted(epochs, "epoch")
    return f"{found}: {some(wrong)}"


def coverage_findings(
    reports: Sequence[RankReport], num_samples: int, epochs: int, look: str
) -> Iterator[Finding]:
    """A finding if the ranks together did not train each sample once per epoch."""
    by_rank = [
        [sample for event in report.of("forward") for sample in event["samples"]]
        for report in reports
    ]
    extra, missing = miscounted([s for own in by_rank for s in own], num_samples, epochs)
    if not extra and not missing:
        return
    found = f"on {counted(len(reports), 'rank')}, "
    found += how_often(extra, missing, num_samples, epochs)
    if extra:
        ranks = [rank for rank, samples in enumerate(by_rank) if extra[0] in samples]
        found += f"; sample {extra[0]} was trained on {named_ranks(ranks)}"
    rule = "an epoch trains each sample exactly once, across all ranks"
    yield Finding("trained-twice" if extra else "never-trained", found, rule, look)

"""Did each rank draw its own noise in every step, and a restart the noise that was due?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding

CODES = {
    "ranks-alike": "two ranks draw the same noise",
    "steps-alike": "two steps draw the same noise",
    "noise-begins-again": "after a restart the noise of the first steps comes again",
    "noise-differs": "after a restart a step draws other noise than without one",
}


def noise_of(report: RankReport) -> list[list[float]]:
    """What a rank drew in each step."""
    return [event["values"] for event in report.of("noise")]


def same_noise(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if two ranks or two steps drew the same."""
    seen: dict[tuple[float, ...], tuple[int, int]] = {}
    for report in reports:
        for step, values in enumerate(noise_of(report), 1):
            rank, earlier = seen.setdefault(tuple(values), (report.rank, step))
            if (rank, earlier) != (report.rank, step):
                yield Finding(
                    "ranks-alike" if rank != report.rank else "steps-alike",
                    f"rank {rank} in step {earlier} and rank {report.rank} in step {step} draw "
                    f"the same noise, {values[0]:.4f}, ...",
                    "every rank draws noise of its own in every step",
                    "at what the random state of a rank and a step follows from",
                )
                return


def other_noise(
    reports: Sequence[RankReport], whole: Sequence[RankReport], start: int, look: str
) -> Iterator[Finding]:
    """A finding at the first step of a restart that drew other noise than undisturbed."""
    for report in reports:
        theirs = noise_of(whole[report.rank])
        for step, values in enumerate(noise_of(report), start):
            if values == theirs[step]:
                continue
            again = values in theirs[:start]
            known = f", as in step {theirs.index(values) + 1}" if again else ""
            yield Finding(
                "noise-begins-again" if again else "noise-differs",
                f"restarted with a checkpoint of step {start}, rank {report.rank} draws "
                f"{values[0]:.4f} in step {step + 1}{known}; undisturbed it draws "
                f"{theirs[step][0]:.4f}",
                "a restart draws in each step what the run would have drawn",
                look,
            )
            return

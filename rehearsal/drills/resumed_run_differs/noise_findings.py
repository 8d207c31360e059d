"""Is each rank's noise new in every step, and does a restart draw the uninterrupted run's?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding

CODES = {
    "same-noise-on-two-ranks": "two ranks draw the same noise",
    "same-noise-in-two-steps": "two steps draw the same noise",
    "noise-repeats": "after a restart, the noise of the first steps repeats",
    "noise-differs": "a restart, or a run with the same seed, draws different noise in a step",
    "seed-has-no-effect": "runs with different seeds draw the same noise",
}


def noise_of(report: RankReport) -> list[list[float]]:
    """What a rank drew in each step."""
    return [event["values"] for event in report.of("noise")]


def same_noise(reports: Sequence[RankReport], where: str = "") -> Iterator[Finding]:
    """A finding if two ranks or two steps drew the same.

    Args:
        where: the beginning of the sentence, as "restarted ..., ".
    """
    seen: dict[tuple[float, ...], tuple[int, int]] = {}
    for report in reports:
        for step, values in enumerate(noise_of(report), 1):
            rank, earlier = seen.setdefault(tuple(values), (report.rank, step))
            if (rank, earlier) != (report.rank, step):
                code = "same-noise-in-two-steps"
                found = f"{where}rank {rank} drew the same noise in its forward passes "
                found += f"{earlier} and {step}"
                if rank != report.rank:
                    code = "same-noise-on-two-ranks"
                    found = f"{where}rank {rank} in its forward pass {earlier} and rank "
                    found += f"{report.rank} in its forward pass {step} drew the same noise"
                yield Finding(
                    code,
                    f"{found}: {values[0]:.4f}, ...",
                    "no two ranks and no two steps draw the same noise",
                    "at what determines a rank's random state in each step",
                )
                return


def other_noise(
    reports: Sequence[RankReport],
    whole: Sequence[RankReport],
    start: int,
    where: str,
    look: str,
) -> Iterator[Finding]:
    """A finding at the first step that drew different noise than the uninterrupted run.

    Args:
        start: the steps that were done before.
        where: the beginning of the sentence, as "restarted ..., ".
    """
    for report in reports:
        theirs = noise_of(whole[report.rank])
        ours = noise_of(report)
        for step, values in enumerate(ours[: len(theirs) - start], start):
            if values == theirs[step]:
                continue
            again = values in theirs[:start]
            known = f", the noise of step {theirs.index(values) + 1}" if again else ""
            yield Finding(
                "noise-repeats" if again else "noise-differs",
                f"{where}rank {report.rank} drew {values[0]:.4f} in step {step + 1}{known}; in "
                f"the uninterrupted run it drew {theirs[step][0]:.4f}",
                "with the same seed, a run draws the same noise in each step, killed or not",
                look,
            )
            return


def seedless(
    reports: Sequence[RankReport], others: Sequence[RankReport], seeds: tuple[int, int]
) -> Iterator[Finding]:
    """A finding if a rank drew the same noise in the same step of two runs with two seeds."""
    for ours, theirs in zip(reports, others, strict=False):
        pairs = zip(noise_of(ours), noise_of(theirs), strict=False)
        for step, (one, other) in enumerate(pairs, 1):
            if one == other:
                yield Finding(
                    "seed-has-no-effect",
                    f"rank {ours.rank} drew the same noise in step {step} with seed={seeds[0]} "
                    f"and with seed={seeds[1]}",
                    "the noise depends on the seed that train is given",
                    "at what determines a rank's random state in each step",
                )
                return

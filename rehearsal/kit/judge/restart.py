"""Was the job killed as planned?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import most_steps

EACH_EPOCH_ONCE = "each epoch is trained once, from its first step to its last"
EPOCH_BOUNDS = "at where an epoch begins and ends, and at which of its samples a rank takes"


def judge_killed(reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """A finding if the kill of this job never came: the run did not get that far."""
    if not any(killed(report) for report in reports):
        found = f"the run ended after {counted(most_steps(reports), 'optimizer step')}, before "
        found += "the step in which it was to be killed"
        yield Finding("not-all-steps", found, EACH_EPOCH_ONCE, "at what ends the loops")

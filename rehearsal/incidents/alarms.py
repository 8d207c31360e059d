"""Which symptoms does a job show? The alert rules, each a figure and a limit.

A fault is visible as one or two of these, and a fix must silence them without raising others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rehearsal.incidents.evidence import Evidence


class Alarm(NamedTuple):
    """Fires when the figure exceeds the limit, or isn't a number."""

    id: str
    says: str  # the symptom in words; {value} is the figure
    measure: Callable[[Evidence], float]
    limit: float
    is_timing: bool = False  # a busy machine may raise it now and then

    def value(self, evidence: Evidence) -> float:
        """The figure."""
        return float(self.measure(evidence))

    def fires(self, evidence: Evidence) -> bool:
        """Whether the job shows the symptom."""
        return not self.value(evidence) <= self.limit

    def describe(self, evidence: Evidence) -> str:
        """What was measured, in words."""
        value = self.value(evidence)
        compared = "above" if self.fires(evidence) else "within"
        return f"{self.says.format(value=value)} ({compared} the limit of {self.limit:g})"


ALARMS = {
    alarm.id: alarm
    for alarm in (
        Alarm(
            "input_wait",
            "a rank waits for data during {value:.0%} of a step",
            Evidence.input_share,
            0.27,
            True,
        ),
        Alarm(
            "input_spikes",
            "a quarter of the batches keep a rank waiting for {value:.1f} steps",
            Evidence.input_spikes,
            1.5,
            True,
        ),
        Alarm(
            "straggler",
            "the slowest rank computes {value:.1f} times as long as the fastest",
            Evidence.straggling,
            1.7,
            True,
        ),
        Alarm(
            "sync_wait",
            "even the last rank to arrive spends {value:.0%} of its step in the gradient sync",
            Evidence.sync_share,
            0.5,
            True,
        ),
        Alarm(
            "save_stall",
            "training waits {value:.1f} steps for a usual save",
            Evidence.save_stall,
            5.0,
            True,
        ),
        Alarm(
            "unfinished",
            "the job gave up before the end of its plan",
            lambda evidence: float(not evidence.is_done()),
            0.5,
        ),
        Alarm("crashes", "{value:.0f} attempts crashed", lambda e: float(e.crashes()), 0.5),
        Alarm(
            "crash_loop",
            "{value:.0f} attempts ended without a single step",
            lambda evidence: float(evidence.barren_attempts()),
            1.5,
        ),
        Alarm("audit", "the audit counts {value:.0f} findings", Evidence.audit_findings, 0.5),
        Alarm(
            "rate_jump",
            "the learning rate rises by a factor of {value:.2f} from one step to the next",
            Evidence.rate_jump,
            1.2,
        ),
        Alarm(
            "not_learning",
            "the loss ends at {value:.0%} of what guessing gives",
            Evidence.learned,
            0.9,
        ),
        Alarm(
            "nonfinite",
            "{value:.0f} updates were withheld, or stopped the job, over a NaN or infinity",
            lambda evidence: float(evidence.skipped_steps()),
            0.5,
        ),
        Alarm(
            "replicas",
            "the ranks' weights differ after {value:.0f} steps",
            lambda evidence: float(evidence.different_weights()),
            0.5,
        ),
        Alarm(
            "eval_mode",
            "{value:.0f} steps were trained with dropout switched off",
            lambda evidence: float(evidence.steps_in_eval_mode()),
            0.5,
        ),
        Alarm(
            "gradients",
            "one rank's own gradient is {value:.0f} times as large as another's",
            Evidence.gradient_outlier,
            6.0,
        ),
        Alarm(
            "capacity",
            "the job runs on {value:.0f} host(s) fewer than it has",
            lambda evidence: float(evidence.missing_hosts()),
            0.5,
        ),
        Alarm(
            "batch",
            "the global batch is off by {value:.0f} samples, so this is another training",
            lambda evidence: float(evidence.batch_error()),
            0.5,
        ),
        Alarm("hang", "{value:.0f} attempts hung", lambda e: float(e.hangs()), 0.5),
        Alarm(
            "memory", "a rank's memory grew by {value:.0f} MiB", Evidence.largest_growth, 60.0
        ),
        Alarm(
            "checkpoint_age",
            "up to {value:.0f} steps were trained since the newest checkpoint",
            lambda evidence: float(evidence.checkpoint_gap()),
            18.0,
        ),
        Alarm(
            "replayed",
            "{value:.0%} of the plan's steps were trained more than once",
            Evidence.replayed_share,
            0.5,
        ),
        Alarm("clocks", "the ranks' clocks are {value:.0f} s apart", Evidence.clock_gap_s, 5.0),
    )
}


def firing(evidence: Evidence) -> list[str]:
    """The ids of the alarms that fire."""
    return [alarm.id for alarm in ALARMS.values() if alarm.fires(evidence)]

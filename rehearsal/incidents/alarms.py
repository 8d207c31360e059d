"""Which symptoms does a job show? The alert rules, each a figure and a limit.

A fault shows as one or two of these, and a fix must silence them without raising others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rehearsal.incidents.evidence import Evidence


ANY = 0.5  # the limit of a count of which there should be none


class Alarm(NamedTuple):
    """Fires when the figure exceeds the limit, or isn't a number."""

    id: str
    says: str  # what is measured, in words, with {} for the figure
    form: str  # how the figure is written, such as "{:.0%}"
    measure: Callable[[Evidence], float]
    limit: float
    is_timing: bool = False  # a busy machine may raise it now and then

    def value(self, evidence: Evidence) -> float:
        """The figure."""
        return float(self.measure(evidence))

    def fires(self, evidence: Evidence) -> bool:
        """Whether the job shows the symptom."""
        return not self.value(evidence) <= self.limit

    def figure(self, evidence: Evidence) -> str:
        """The figure as it is written."""
        return self.form.format(self.value(evidence))

    def describe(self, evidence: Evidence) -> str:
        """What was measured, in words."""
        text = self.says.format(self.figure(evidence))
        is_count = self.form == "{:.0f}" and self.limit == ANY
        return text if is_count else f"{text} (limit {self.form.format(self.limit)})"


ALARMS = {
    alarm.id: alarm
    for alarm in (
        Alarm(
            "input_wait",
            "largest share of a step that a rank waits for data: {}",
            "{:.0%}",
            Evidence.input_share,
            0.27,
            True,
        ),
        Alarm(
            "input_spikes",
            "a quarter of the batches keep a rank waiting {} step times or more",
            "{:.1f}",
            Evidence.input_spikes,
            1.5,
            True,
        ),
        Alarm(
            "straggler",
            "the slowest rank computes {} times as long as the fastest",
            "{:.1f}",
            Evidence.straggling,
            1.7,
            True,
        ),
        Alarm(
            "sync_wait",
            "even the last rank to arrive spends {} of its step in the gradient sync",
            "{:.0%}",
            Evidence.sync_share,
            0.5,
            True,
        ),
        Alarm(
            "save_stall",
            "training waits {} step times for a typical save",
            "{:.1f}",
            Evidence.save_stall,
            5.0,
            True,
        ),
        Alarm(
            "unfinished",
            "runs that gave up before the end of the plan: {}",
            "{:.0f}",
            lambda e: float(not e.is_done()),
            ANY,
        ),
        Alarm(
            "crashes", "attempts that crashed: {}", "{:.0f}", lambda e: float(e.crashes()), ANY
        ),
        Alarm(
            "crash_loop",
            "attempts that ended without a single step: {}",
            "{:.0f}",
            lambda e: float(e.barren_attempts()),
            1.0,
        ),
        Alarm("audit", "findings of the audit: {}", "{:.0f}", Evidence.audit_findings, ANY),
        Alarm(
            "rate_jump",
            "the learning rate rises by a factor of {} from one step to the next",
            "{:.2f}",
            Evidence.rate_jump,
            1.2,
        ),
        Alarm(
            "not_learning",
            "the loss ends at {} of what guessing gives",
            "{:.0%}",
            Evidence.learned,
            0.9,
        ),
        Alarm(
            "nonfinite",
            "updates withheld, or attempts stopped, over a NaN or infinity: {}",
            "{:.0f}",
            lambda e: float(e.skipped_steps()),
            ANY,
        ),
        Alarm(
            "replicas",
            "steps after which the ranks' weights differ: {}",
            "{:.0f}",
            lambda e: float(e.different_weights()),
            ANY,
        ),
        Alarm(
            "eval_mode",
            "steps trained with dropout off: {}",
            "{:.0f}",
            lambda e: float(e.steps_in_eval_mode()),
            ANY,
        ),
        Alarm(
            "gradients",
            "one rank's own gradient is {} times as large as another's",
            "{:.0f}",
            Evidence.gradient_outlier,
            6.0,
        ),
        Alarm(
            "capacity",
            "hosts that the job has and doesn't use: {}",
            "{:.0f}",
            lambda e: float(e.missing_hosts()),
            ANY,
        ),
        Alarm(
            "batch",
            "samples by which the global batch is off, which makes it another training: {}",
            "{:.0f}",
            lambda e: float(e.batch_error()),
            ANY,
        ),
        Alarm(
            "loss_mismatch",
            "the reported loss is {} nats off the mean over the step's samples",
            "{:.3f}",
            Evidence.loss_mismatch,
            0.002,
        ),
        Alarm("hang", "attempts that hung: {}", "{:.0f}", lambda e: float(e.hangs()), ANY),
        Alarm(
            "memory", "a rank's memory grew by {} MiB", "{:.0f}", Evidence.largest_growth, 60.0
        ),
        Alarm(
            "checkpoint_age",
            "most steps trained since the newest checkpoint: {}",
            "{:.0f}",
            lambda e: float(e.checkpoint_gap()),
            18.0,
        ),
        Alarm(
            "replayed",
            "share of the plan's steps that were trained more than once: {}",
            "{:.0%}",
            Evidence.replayed_share,
            0.5,
        ),
        Alarm(
            "clocks", "the ranks' clocks are {} s apart", "{:.0f}", Evidence.clock_gap_s, 5.0
        ),
    )
}


def firing(evidence: Evidence) -> list[str]:
    """The ids of the alarms that fire."""
    return [alarm.id for alarm in ALARMS.values() if alarm.fires(evidence)]

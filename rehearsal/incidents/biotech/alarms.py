"""Which symptoms does a biotech job show? Those of every job, and those of its science."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rehearsal.incidents.alarms import ALARMS as GENERAL
from rehearsal.incidents.alarms import Alarm
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.evidence import Evidence

Measure = Callable[[BioEvidence], float]


def of_bio(measure: Measure) -> Callable[[Evidence], float]:
    """A figure of ``BioEvidence``, for what is written for every track."""
    return cast("Callable[[Evidence], float]", measure)


OWN = (
    # A bin of a few molecules has a noisier gradient than a batch of text. Healthy jobs on
    # graphs reach 7; garbage from one host is 25.
    GENERAL["gradients"]._replace(limit=12.0),
    Alarm(
        "not_learning",
        "the loss ends at {} of what it began with",
        "{:.0%}",
        of_bio(BioEvidence.learned),
        0.9,
    ),
    Alarm(
        "optimism",
        "the mean AUROC of the parts held out is {} above that of the fresh batch",
        "{:.2f}",
        of_bio(BioEvidence.optimism),
        0.13,
    ),
    Alarm(
        "underrated",
        "the fresh batch has {} times as many actives as the model expects",
        "{:.2f}",
        of_bio(BioEvidence.underrated),
        1.55,
    ),
    Alarm(
        "metric_mismatch",
        "a reported AUROC is {} off the one over all scores",
        "{:.3f}",
        of_bio(BioEvidence.metric_mismatch),
        0.0005,
    ),
    Alarm(
        "flattery",
        "in deviations of the training part, the held-back error is {} times the reported one",
        "{:.2f}",
        of_bio(BioEvidence.flattery),
        1.2,
    ),
    Alarm(
        "uneven_work",
        "ranks wait {} of their time for the one with the most tokens",
        "{:.0%}",
        of_bio(BioEvidence.idle_share),
        0.2,
    ),
    Alarm(
        "asymmetry",
        "turning a molecule changes the network's vectors by {} of their length",
        "{:.0e}",
        of_bio(BioEvidence.turning_error),
        1e-4,
    ),
    Alarm(
        "miscalibration",
        "a plate's share of actives is {} off what the model expects there",
        "{:.2f}",
        of_bio(BioEvidence.miscalibration),
        0.15,
    ),
)
ALARMS: dict[str, Alarm] = {**GENERAL, **{alarm.id: alarm for alarm in OWN}}


def firing(evidence: Evidence) -> list[str]:
    """The ids of the alarms that fire."""
    return [alarm.id for alarm in ALARMS.values() if alarm.fires(evidence)]

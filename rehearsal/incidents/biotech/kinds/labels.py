"""Which labels a job trains on, when most cells of the lab's table are empty."""

from __future__ import annotations

import random
from typing import cast

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.world import with_library, world_of
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See
from rehearsal.incidents.world import Plan


def mostly_empty(plan: Plan, rng: random.Random) -> Plan:
    """Three cells in five were never measured, so zeros there outnumber everything else."""
    return with_library(plan, missing_fraction=0.6)


def deliver_zeros(plan: Plan, rng: random.Random) -> Plan:
    """The newest delivery of the lab's table has a 0 in every empty cell."""
    return with_library(plan, zeros_in=(plan.settings["delivery"],))


missing_labels_as_negatives = Kind(
    id="missing_labels_as_negatives",
    title="Cells that were never measured are trained on as inactive",
    layer="world",
    alarm="underrated",
    alert=lambda e: (
        f"The fresh plates have {underrated(e):.1f} times as many actives as the new model "
        "expected there. Its training loss was the lowest so far."
    ),
    setup=mostly_empty,
    inject=deliver_zeros,
    claims=(
        Claim(
            "actives of the fresh batch, over those that the model expects",
            of_bio(BioEvidence.underrated),
            1.55,
            1.6,
        ),
        Claim(
            "labels trained on, over those that the lab measured",
            of_bio(BioEvidence.invented_labels),
            1.01,
            1.5,
        ),
        Claim(
            "share of the fresh batch's actives below a probability of a half",
            of_bio(lambda e: 1 - e.fresh_recall()),
            0.95,
            0.98,
        ),
    ),
    reference=lambda plan: Fix(
        {"delivery": world_of(plan).deliveries[-2]}, "train on the delivery before this one"
    ),
    wrong=lambda plan: (
        Fix({"balance": True}, "weight the actives, since there are so few"),
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the run must overfit"),
    ),
    path=(
        See(
            "fresh_batch",
            "Is the order of the molecules wrong, or the probabilities?",
            "The ranking is about as good as on the validation part. But the model expects "
            "about half as many actives as there are, in nearly every assay.",
            "symptom",
            ("validation",),
        ),
        See(
            "labels",
            "How many labels of each assay did an epoch train on, and how many were measured?",
            "Every assay has a label for nearly every molecule. The lab measured two in "
            "five of them, and there isn't one extra active: everything that was added is an "
            "inactive.",
            "mechanism",
            ("data",),
        ),
        See(
            "deliveries",
            "Where do the labels come from, and since when?",
            "From the newest delivery of the lab's table, which has no empty cell. The one "
            "before it leaves three in five empty; this one has a 0 there.",
            "cause",
        ),
    ),
    chain=(
        "the newest delivery of the lab's table has a 0 where nothing was measured",
        "each empty cell is trained on as an inactive, so the loss is a mean over the full "
        "table, and actives become less than half as frequent",
        "the loss looks better, the predicted rates fall to half, and actives stay below the "
        "threshold",
    ),
    prevention="Count labels and actives of each assay when a delivery arrives, and compare "
    "both with the one before; a column without an empty cell is news.",
    first_moves=("delivery", "empty", "missing", "mask", "lab"),
    like=("leaky_split", "metric_averaged_over_ranks"),
    clashes=("sparse_assay",),
)


def underrated(evidence: Evidence) -> float:
    """Actives of the fresh batch, over those that the model expects."""
    return cast("BioEvidence", evidence).underrated()


KINDS = (missing_labels_as_negatives,)

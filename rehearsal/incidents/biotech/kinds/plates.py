"""Labels that come from several plates, and don't all mean the same."""

from __future__ import annotations

import random

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.world import with_library, world_of
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See
from rehearsal.incidents.world import Plan


def with_many_fresh_scaffolds(plan: Plan, rng: random.Random) -> Plan:
    """A job whose fresh batch has many scaffolds, so its share of actives is no accident."""
    return with_library(plan, fresh_scaffolds=60)


def read_at_another_cutoff(plan: Plan, rng: random.Random) -> Plan:
    """One plate calls more than twice as many hits as it should."""
    plate = rng.choice(world_of(plan).plates)
    return with_library(plan, shifted_plate=plate, shifted_fraction=0.8)


def shifted(plan: Plan) -> int:
    """The plate that was read at another cutoff."""
    plate = world_of(plan).library.shifted_plate
    assert plate is not None
    return plate


plate_with_another_cutoff = Kind(
    id="plate_with_another_cutoff",
    title="One plate's hits were called at another cutoff",
    layer="world",
    alarm="miscalibration",
    alert=lambda e: (
        "The nightly calibration check failed: somewhere in the training data, far more labels "
        "are active than the model expects. The loss falls as usual."
    ),
    setup=with_many_fresh_scaffolds,
    inject=read_at_another_cutoff,
    claims=(
        Claim(
            "a plate's share of actives, off what the model expects",
            of_bio(BioEvidence.miscalibration),
            0.1,
            0.2,
        ),
        Claim(
            "largest loss of a plate over the median plate's",
            of_bio(BioEvidence.loudest_plate),
            1.25,
            1.3,
        ),
    ),
    reference=lambda plan: Fix(
        {"excluded_plates": [shifted(plan)]},
        "leave that plate out until the lab has called its hits again",
    ),
    wrong=lambda plan: (
        Fix(
            {"learning_rate": plan.settings["learning_rate"] / 2},
            "the loss is noisy, so take smaller steps",
        ),
        Fix({"balance": True}, "there are more actives than before, so weight them again"),
    ),
    path=(
        See(
            "loss",
            "Is it a few bad batches, or something in all of them?",
            "The loss falls without a spike or a jump. Whatever is wrong is spread evenly over "
            "the batches, so no step stands out.",
            "symptom",
            ("plates",),
        ),
        See(
            "plates",
            "Whose labels does the model get wrong?",
            "One plate's. Eight in ten of its labels are active, against three in ten on each "
            "of the others, and the model expects about half. Its loss is far above that of "
            "the others, which agree with one another.",
            "mechanism",
        ),
        See(
            "labels",
            "Does one assay have too many actives, or do all of them?",
            "All of them: each trains on more actives than the lab counts at its usual cutoff. "
            "No target's chemistry does that, so the plate was read differently.",
            "cause",
            ("data",),
        ),
    ),
    chain=(
        "one plate's hits were called at a lower cutoff than those of the others",
        "the same kind of molecule is active there and inactive elsewhere; the model can't see "
        "the plate, so it settles for something in between",
        "on that plate the model expects far too few actives and the loss stays high; "
        "everywhere else it expects slightly too many",
    ),
    prevention="Put controls on every plate, and compare each plate's hit rate and calibration "
    "with the others' before its labels are trained on.",
    first_moves=("plate", "exclude", "quarantine", "lab", "cutoff", "source", "label"),
    like=("missing_labels_as_negatives", "leaky_split"),
    related=("not_learning",),
)

KINDS = (plate_with_another_cutoff,)

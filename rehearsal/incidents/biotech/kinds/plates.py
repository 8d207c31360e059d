"""Labels that come from several plates, and don't all mean the same."""

from __future__ import annotations

import random

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.world import with_library, world_of
from rehearsal.incidents.kinds.kind import Claim, Fix, Kind, See
from rehearsal.incidents.world import Plan


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
        "The training loss of this week's run levels off well above last week's. Nobody has "
        "changed the model or its settings."
    ),
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
        Fix({"balance": True}, "there are more actives than before, so weigh them again"),
    ),
    path=(
        See(
            "loss",
            "Is the loss high in some steps, or in all of them?",
            "It falls as usual at first and settles too high, without a spike: the bad rows "
            "are spread over all batches.",
            "symptom",
            ("plates",),
        ),
        See(
            "plates",
            "Whose labels does the model get wrong?",
            "One plate's. More than twice as many of its labels are active as the model "
            "expects, and its loss is far above the others', which are all alike.",
            "mechanism",
        ),
        See(
            "labels",
            "Is it one assay, or all of them?",
            "All of them have more actives than the lab counts at the usual cutoff, so it "
            "isn't the chemistry of one target: that plate was read differently.",
            "cause",
            ("data",),
        ),
    ),
    chain=(
        "one plate's hits were called at a lower cutoff than those of the others",
        "the same kind of molecule is active there and inactive elsewhere; the model can't "
        "know the plate, so it splits the difference",
        "the loss of those rows stays high, and the model expects too few actives there and "
        "too many everywhere else",
    ),
    prevention="Put controls on every plate, and compare each plate's hit rate and calibration "
    "with the others' before its labels are trained on.",
    first_moves=("plate", "exclude", "quarantine", "lab", "cutoff", "source", "label"),
    like=("missing_labels_as_negatives", "leaky_split"),
    related=("not_learning",),
)

KINDS = (plate_with_another_cutoff,)

"""What a proof of the biotech track depends on, besides what every proof does."""

from __future__ import annotations

from rehearsal.incidents.biotech.deployed import modules_for
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.world import Plan

BIO_MACHINERY = (
    "rehearsal.incidents.parts",
    *(
        f"rehearsal.incidents.biotech.{name}"
        for name in (
            "after_training alarms batch_evidence batches deployed evidence geometries "
            "in_rank job judge library prepare sequences symmetry_check world"
        ).split()
    ),
)


def trainer_modules(plan: Plan) -> list[str]:
    """The modules of trainer_core.bio that the plan's job imports, or that make its data."""
    names = modules_for(data_of(plan))
    found = [f"trainer_core.{name.removesuffix('.py').replace('/', '.')}" for name in names]
    if data_of(plan) == "proteins":  # sequences.py writes what it makes
        found.append("trainer_core.bio.generated_proteins")
    return found

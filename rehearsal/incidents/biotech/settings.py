"""What the person on call may change on the biotech track."""

from __future__ import annotations

from rehearsal.incidents import settings as general
from rehearsal.incidents.settings import Rules
from trainer_core.bio.config import BioConfig

TRAINER = {
    **general.TRAINER,
    "micro_batch_size": "samples, or bins, per forward pass and rank",
    "pinned_global_batch_size": "samples, or bins, per step at any number of hosts, or None",
    "split": "which molecules are trained on: scaffold, generic_scaffold, cluster or random",
    "balance": "weight an assay's actives by inactives / actives",
    "budget": "atoms, or tokens, in one bin",
    "crop": "how many residues of a longer protein are trained on, or None for all of them",
    "amp": "autocast to a lower precision: no or bf16",
}
OPERATIONS = {
    **{name: text for name, text in general.OPERATIONS.items() if name != "restored_samples"},
    "delivery": "the lab's table of labels that the job is prepared from",
    "excluded_plates": "numbers of plates whose labels are left out",
}
LAYERS = {**general.LAYER_OF, "delivery": "world", "excluded_plates": "world"}
RULES = Rules(TRAINER, OPERATIONS, LAYERS, BioConfig)

"""What can be looked at on the biotech track, and what it costs in minutes."""

from __future__ import annotations

from rehearsal.incidents import sources as general
from rehearsal.incidents.biotech import batch_looks, looks
from rehearsal.incidents.sources import Sources

SOURCES: Sources = {
    **general.SOURCES,
    "loss": (1, looks.loss),
    "data": (5, looks.data),
    "settings": (1, looks.settings),
    "code": (8, looks.code),
    "validation": (2, looks.validation),
    "fresh_batch": (3, looks.fresh_batch),
    "labels": (4, looks.labels),
    "deliveries": (2, looks.deliveries),
    "scores": (5, looks.scores),
    "leakage": (4, looks.leakage),
    "neighbors": (5, looks.neighbors),
    "scaler": (3, looks.scaler),
    "batches": (3, batch_looks.batches),
    "plates": (4, batch_looks.plates),
    "symmetry": (3, batch_looks.symmetry),
}

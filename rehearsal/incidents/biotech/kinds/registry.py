"""All kinds of the biotech track by id, from the modules of this package."""

from __future__ import annotations

from rehearsal.incidents.biotech.kinds import (
    geometry,
    labels,
    lengths,
    metrics,
    plates,
    scales,
    splits,
)
from rehearsal.incidents.kinds.kind import Kind
from rehearsal.incidents.kinds.without import no_fault

__all__ = ["KINDS", "MODULES", "PAIRS"]

MODULES = (splits, labels, metrics, scales, lengths, geometry, plates)
KINDS: dict[str, Kind] = {
    kind.id: kind for kind in (*(k for module in MODULES for k in module.KINDS), no_fault)
}
PAIRS: tuple[tuple[str, str], ...] = ()

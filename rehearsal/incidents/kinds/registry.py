"""All kinds by id, from the modules of this package, and the pairs that may meet."""

from __future__ import annotations

from rehearsal.incidents.kinds import (
    data,
    hangs,
    loader,
    memory,
    numerics,
    replicas,
    resizes,
    restarts,
    speed,
    storage,
    without,
)
from rehearsal.incidents.kinds.kind import Kind
from rehearsal.incidents.kinds.pairs import PAIRS

__all__ = ["KINDS", "MODULES", "PAIRS"]

MODULES = (
    speed,
    loader,
    storage,
    data,
    restarts,
    resizes,
    hangs,
    numerics,
    replicas,
    memory,
    without,
)
KINDS: dict[str, Kind] = {kind.id: kind for module in MODULES for kind in module.KINDS}

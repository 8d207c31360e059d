"""All kinds by id, from the modules of this package."""

from __future__ import annotations

from rehearsal.incidents.kinds import (
    data,
    hangs,
    memory,
    numerics,
    restarts,
    speed,
    storage,
    without,
)
from rehearsal.incidents.kinds.kind import Kind

MODULES = (speed, storage, data, restarts, hangs, numerics, memory, without)
KINDS: dict[str, Kind] = {kind.id: kind for module in MODULES for kind in module.KINDS}

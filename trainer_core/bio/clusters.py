"""Which molecules belong together: by scaffold, or by similarity (Butina).

Part of the biotech track. RDKit's own Butina.ClusterData holds n * n distances as float64: 13
GB for the 41,000 molecules of MoleculeNet's HIV set. This one keeps each molecule's neighbors
only, and a test compares the clusters with RDKit's. Time is still quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.featurize import morgan_bit_vectors
from trainer_core.bio.molecules import MoleculeTable
from trainer_core.bio.packages import load
from trainer_core.settings import UserError

# %%
CLUSTER_LIMIT = 100_000
Acyclic = Literal["cluster", "molecule", "together", "refuse"]


def butina_clusters(
    smiles: Sequence[str], *, cutoff: float, limit: int = CLUSTER_LIMIT
) -> dict[str, str]:
    """The cluster center of each SMILES, by Tanimoto distance of Morgan fingerprints.

    The molecule with the most neighbors within ``cutoff`` becomes a center and takes them; then
    the one with the most among those not yet visited, and so on. Of two with as many neighbors,
    the later one in ``smiles`` goes first, as in RDKit.

    Raises:
        UserError: if there are more than ``limit`` molecules, or ``cutoff`` is not in 0..1.
    """
    if not 0 <= cutoff <= 1:
        raise UserError(f"cutoff={cutoff}: a Tanimoto distance lies in 0..1. Try 0.4.")
    if len(smiles) > limit:
        raise UserError(
            f"{len(smiles)} molecules to cluster take {len(smiles) ** 2:.1e} comparisons of "
            f"100 ns. Raise limit={limit} if you can wait, or group by generic scaffold."
        )
    neighbors = _neighbors_within(smiles, cutoff)
    order = sorted(range(len(smiles)), key=lambda place: (-len(neighbors[place]), -place))
    center = np.full(len(smiles), -1)
    for place in order:
        if center[place] < 0:
            near = neighbors[place]
            center[near[center[near] < 0]] = place
    return {text: smiles[center[place]] for place, text in enumerate(smiles)}


def _neighbors_within(smiles: Sequence[str], cutoff: float) -> list[NDArray[np.int32]]:
    """Places of the molecules at most ``cutoff`` away from each one; it is one of them."""
    data = load("rdkit.DataStructs", "clustering molecules")
    prints = morgan_bit_vectors(smiles)
    found = []
    for fingerprint in prints:
        similarity = np.array(data.BulkTanimotoSimilarity(fingerprint, prints))
        found.append(np.flatnonzero(1 - similarity <= cutoff).astype(np.int32))
    return found


# %%
def scaffold_group_keys(
    table: MoleculeTable, *, generic: bool = False, acyclic: Acyclic = "cluster"
) -> list[str]:
    """The group of each molecule. Those without a ring all have the scaffold "".

    Args:
        acyclic: ``cluster`` groups them by similarity (Butina, distance 0.4), so that stearic
            acid stays with palmitic acid; ``molecule`` makes each its own group, with its
            stereoisomers; ``together`` makes them one group, which lands on one side as a
            block; ``refuse`` raises.
    """
    groups = [key.generic if generic else key.scaffold for key in table.keys]
    ringless = [place for place, group in enumerate(groups) if not group]
    if ringless and acyclic == "refuse":
        raise UserError(
            f"{len(ringless)} of {len(table)} molecules have no ring, the first of them "
            f"{table.ids[ringless[0]]}: no scaffold groups them. Leave them out, or pass "
            "acyclic='cluster', 'molecule' or 'together'."
        )
    names = {"molecule": lambda: [table.keys[place].flat for place in ringless]}
    names["cluster"] = lambda: cluster_keys(table, 0.4, ringless)
    names["together"] = lambda: [""] * len(ringless)
    chosen = names[acyclic]() if ringless else []
    for place, name in zip(ringless, chosen, strict=True):
        groups[place] = f"acyclic {name}"
    return groups


def cluster_keys(
    table: MoleculeTable, cutoff: float, places: Iterable[int] | None = None
) -> list[str]:
    """The flat SMILES of each molecule's cluster center; stereoisomers share a cluster."""
    chosen = range(len(table)) if places is None else places
    flat = [table.keys[place].flat for place in chosen]
    # Sorted, because Butina breaks ties by position.
    center_of = butina_clusters(sorted(set(flat)), cutoff=cutoff)
    return [center_of[text] for text in flat]

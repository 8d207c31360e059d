"""The data that ships: well-known drugs, and a made-up library with planted assays.

The drugs are true, and have no labels. The library's labels are planted, so that a run has
something to learn whose size is known: scaffolds differ, and so do substituents.

    n  molecules    t  tasks
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

# %% active="py"
from trainer_core.bio.assays import plant_assay, scaffold_library, substituent_keys
from trainer_core.bio.clusters import scaffold_group_keys
from trainer_core.bio.molecules import MoleculeRows, MoleculeTable, build_molecule_table
from trainer_core.bio.tables import DRUGS, SHIPPED_DRUGS, MoleculeTableReader, as_columns

# %%
NUM_SCAFFOLDS, PER_SCAFFOLD = 60, 20
NUM_ASSAYS, ACTIVE_FRACTION, MISSING_FRACTION = 12, 0.1, 0.6
# Of a label's variance; the rest is noise.
SCAFFOLD_SHARE, SUBSTITUENT_SHARE = 0.5, 0.3


def shipped_drugs() -> MoleculeTable:
    """The drugs and natural products of data/drugs.csv, without labels."""
    return build_molecule_table(
        MoleculeRows(**as_columns(MoleculeTableReader(SHIPPED_DRUGS, DRUGS)))
    )


def shipped_molecules() -> MoleculeTable:
    """1,200 molecules of a made-up library with 12 planted assays, most labels missing."""
    table = build_molecule_table(scaffold_library(NUM_SCAFFOLDS, PER_SCAFFOLD))
    scaffolds, substituents = scaffold_group_keys(table), substituent_keys(table)
    columns = []
    for task in range(NUM_ASSAYS):
        assay = plant_assay(
            scaffolds,
            scaffold_share=SCAFFOLD_SHARE,
            substituents=substituents,
            substituent_share=SUBSTITUENT_SHARE,
            seed=task,
        )
        columns.append(assay.actives(ACTIVE_FRACTION))
    labels = np.stack(columns, axis=1)
    draw = np.random.default_rng(NUM_ASSAYS)
    labels[draw.random(labels.shape) < MISSING_FRACTION] = np.nan
    return replace(
        table,
        labels=labels,
        tasks=tuple(f"planted_assay_{task}" for task in range(NUM_ASSAYS)),
        conflicts=np.zeros(labels.shape, np.bool_),
    )

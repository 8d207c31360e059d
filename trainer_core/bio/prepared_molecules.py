"""Molecules as a run reads them: prepared once, offline, in one folder for all ranks.

    FOLDER/fingerprints.npy  (n, F / 8) uint8, with a manifest beside it    featurize.py
    FOLDER/labels.npy        (n, t) float32, NaN where nothing was measured
    FOLDER/split-NAME.json   which molecules are trained on                 splits.py
    FOLDER/molecules.json    tasks, counts, digests; written last

Standardizing a molecule costs thousands of times what reading it back does, and a split that is
computed on every rank is a split that can differ between ranks. So neither happens in a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.featurize import MorganSettings, featurize_smiles, open_features
from trainer_core.bio.molecules import MoleculeTable
from trainer_core.bio.packages import load
from trainer_core.bio.splits import Split, cluster_split, random_split, save_split
from trainer_core.bio.splits import scaffold_split, time_split
from trainer_core.settings import UserError

# %%
PREPARED_VERSION = "1"
SPLIT_SEED = 0  # of the random split; the others need none
SPLITTERS: Mapping[str, Callable[[MoleculeTable], Split]] = {
    "random": lambda table: random_split(table, seed=SPLIT_SEED),
    "scaffold": lambda table: scaffold_split(table),
    "generic_scaffold": lambda table: scaffold_split(table, generic=True),
    "cluster": lambda table: cluster_split(table),
    "time": lambda table: time_split(table),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMolecules:
    """Features, labels and a split, as they are on disk; memory-mapped."""

    fingerprints: NDArray[np.uint8]  # (n, F / 8), packed
    labels: NDArray[np.float32]  # (n, t)
    tasks: tuple[str, ...]
    parts: NDArray[np.int8]  # (n,): 0 train, 1 validation, 2 test
    fp_size: int
    digest: str  # of the table, the features and the split


# %%
def prepare_molecules(
    table: MoleculeTable,
    folder: Path,
    splits: Sequence[str] = ("scaffold", "random"),
    settings: MorganSettings | None = None,
) -> dict[str, Any]:
    """Write a table's features, labels and splits to a new folder; returns the manifest.

    Raises:
        UserError: if ``folder`` exists, the table has no labels, or a split is unknown or
            impossible; nothing is written then.
    """
    if unknown := sorted({*splits} - {*SPLITTERS}):
        raise UserError(
            f"splits={', '.join(unknown)}: no such split. Choose from {', '.join(SPLITTERS)}."
        )
    if not table.tasks:
        raise UserError(
            "The table has no label column, so there is nothing to learn from it. Name the "
            "columns with labels (--tasks)."
        )
    made = {name: SPLITTERS[name](table) for name in splits}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UserError(
            f"{folder} exists, and a run may be reading it. Prepared data is never written "
            "over. Choose another folder."
        ) from None
    features = featurize_smiles(table.smiles, len(table), folder / "fingerprints.npy", settings)
    np.save(folder / "labels.npy", table.labels)
    for name, split in made.items():
        save_split(split, folder / f"split-{name}.json")
        np.save(folder / f"split-{name}.npy", split.parts)
    manifest = {
        "version": PREPARED_VERSION,
        "tasks": list(table.tasks),
        "num_molecules": len(table),
        "table_digest": table.digest,
        "features_digest": features.digest,
        "splits": {name: split.digest for name, split in made.items()},
        "merging": table.describe_merging(),
    }
    # Written last: a folder without it isn't finished.
    (folder / "molecules.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def prepared_in_memory(table: MoleculeTable, split: str) -> PreparedMolecules:
    """A small table prepared in this process: every rank does the same work."""
    settings = MorganSettings()
    read = load("rdkit.Chem", "computing fingerprints").MolFromSmiles
    bits_of = settings.generator().GetFingerprintAsNumPy
    bits = np.stack([bits_of(read(text)) for text in table.smiles])
    rows = np.packbits(bits, axis=1, bitorder="little")  # as featurize_smiles writes them
    made = SPLITTERS[split](table)
    return PreparedMolecules(
        fingerprints=rows,
        labels=table.labels,
        tasks=table.tasks,
        parts=made.parts,
        fp_size=settings.fp_size,
        digest=hashlib.sha256(made.digest.encode() + rows.tobytes()).hexdigest()[:32],
    )


def open_prepared(folder: Path, split: str) -> PreparedMolecules:
    """Open what ``prepare_molecules`` wrote. It needs no RDKit.

    Raises:
        UserError: if the folder isn't one, isn't finished, or lacks the split.
    """
    path = folder / "molecules.json"
    if not path.is_file():
        raise UserError(
            f"{folder}: no molecules.json, so it isn't a folder of prepared molecules, or "
            "preparing them was interrupted. Make one: python scripts/prepare_molecules.py "
            "FILE FOLDER"
        )
    manifest = json.loads(path.read_text("utf-8"))
    if manifest["version"] != PREPARED_VERSION:
        raise UserError(
            f"{folder}: prepared in format {manifest['version']}, and this version reads "
            f"{PREPARED_VERSION}. Prepare the molecules again, in a new folder."
        )
    if split not in manifest["splits"]:
        raise UserError(
            f"split={split}: {folder} has {', '.join(manifest['splits'])}. A split made during "
            "a run could differ between ranks and runs. Choose one of these, or prepare the "
            "molecules again with this one."
        )
    features = open_features(folder / "fingerprints.npy")
    facts = [manifest["table_digest"], features.digest, manifest["splits"][split]]
    return PreparedMolecules(
        fingerprints=features.rows(),
        labels=np.load(folder / "labels.npy", mmap_mode="r"),
        tasks=tuple(manifest["tasks"]),
        parts=np.load(folder / f"split-{split}.npy"),
        fp_size=features.settings.fp_size,
        digest=hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32],
    )

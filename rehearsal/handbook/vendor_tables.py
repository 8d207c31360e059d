"""What chapter 32 starts from: molecules as three vendors would send them, in made-up tables.

The structures are the drugs that ship with the project and a made-up combinatorial library.
Which rows are repeats and which are damaged is known, so the chapter can check what it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainer_core.bio.assays import scaffold_library
from trainer_core.bio.packages import load
from trainer_core.bio.tables import DRUGS, SHIPPED_DRUGS, MoleculeTableReader, as_columns


class VendorRow(NamedTuple):
    """A row as it arrives."""

    source: str  # the vendor's file
    vendor_id: str
    raw_smiles: str
    assay_ids: tuple[str, ...]  # most rows have none
    labels: tuple[float, ...]  # one for each assay


class VendorTables(NamedTuple):
    """The rows of all vendors, and what was planted in them."""

    rows: list[VendorRow]
    originals: list[str]  # the SMILES that all rows were written from
    damaged: int  # rows whose text is cut off


def vendor_tables(num_scaffolds: int, per_scaffold: int) -> VendorTables:
    """Three vendors: one keeps the originals' SMILES, one salts, one hydrates and damaged rows.

    The second and third write their atoms in a random order, so no two vendors' texts of one
    molecule are equal.
    """
    drugs = as_columns(MoleculeTableReader(SHIPPED_DRUGS, DRUGS))["smiles"]
    originals = [*drugs, *scaffold_library(num_scaffolds, per_scaffold).smiles]
    random = np.random.default_rng(len(originals))
    shuffled = random.permutation(len(originals))
    share = len(originals) // 10
    written = [
        ("alpha", shuffled[: 7 * share], ""),
        ("beta", shuffled[4 * share :], ".Cl"),
        ("gamma", shuffled[6 * share : 8 * share], ".O"),
    ]
    rows, damaged = list[VendorRow](), 0
    for source, places, suffix in written:
        for number, text in enumerate(_texts(originals, places.tolist(), suffix, random)):
            if source == "gamma" and number % 8 == 0:
                text, damaged = f"{text[: len(text) // 2]}((", damaged + 1
            assays = tuple(f"A{number}" for number in np.flatnonzero(random.random(3) < 0.1))
            labels = tuple(random.normal(6, 1, len(assays)).round(1).tolist())
            name = f"{source[0].upper()}{number:05}"
            rows.append(VendorRow(f"{source}.csv", name, text, assays, labels))
    return VendorTables(rows, originals, damaged)


def _texts(
    originals: list[str], places: list[int], suffix: str, random: np.random.Generator
) -> Iterator[str]:
    """Each molecule as one vendor writes it: as it is, or reordered with what comes with it."""
    chem = load("rdkit.Chem", "writing SMILES in random order")
    for place in places:
        text = originals[place]
        if suffix:
            molecule = chem.MolFromSmiles(text)
            text = chem.MolToRandomSmilesVect(molecule, 1, int(random.integers(2**31)))[0]
        yield f"{text}{suffix}"

"""Synthetic assays with a known scaffold effect, and tables with a known number of twins.

Part of the biotech track. Nobody knows how large the leakage in a real assay is, so a report on
it can't be checked there. Here it is planted, and its size is part of the recipe:

    label = scaffold effect + substituent effect + noise,      total variance 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.molecule_keys import MoleculeKeys
from trainer_core.bio.molecules import MoleculeRows, MoleculeTable
from trainer_core.bio.packages import load
from trainer_core.bio.scaffold_effects import known_gap
from trainer_core.bio.splits import TEST, Parts, Split
from trainer_core.settings import UserError

# %%
# Ring systems with two places for substituents and one for a linker, and what to put there.
LEFT_RINGS = (
    *("{0}c1c({1})cc(cc1){2}", "{0}c1c({1})cc(nc1){2}", "{0}c1c({1})cc(s1){2}"),
    *("{0}C1C({1})CC(CC1){2}", "{0}C1C({1})CN(CC1){2}", "{0}c1c({1})cc2cc(ccc2c1){2}"),
    *("{0}c1c({1})cc2[nH]c(cc2c1){2}", "{0}c1c({1})cc2nc(ccc2c1){2}", "{0}c1c({1})nc(nc1){2}"),
    "{0}c1c({1})cc(o1){2}",
)
LINKERS = ("", "C", "CC", "CCC", "CO", "C(=O)", "C(=O)N", "CS(=O)(=O)")
RIGHT_RINGS = (
    *("c3ccccc3", "c3ccncc3", "c3cccnc3", "c3cccs3", "c3ccco3", "C3CCCCC3", "C3CCCC3"),
    *("N3CCOCC3", "N3CCCCC3", "N3CCNCC3", "N3CCCC3", "C3CC3", "c3ncccn3", "c3cnccn3"),
)
# Each is valid before a ring and in a branch: OC is hydroxymethyl in one, methoxy in the other.
SUBSTITUENTS = ("[H]", "F", "Cl", "Br", "C", "CC", "CCC", "O", "OC", "N", "NC")


def scaffold_library(num_scaffolds: int, per_scaffold: int, *, seed: int = 0) -> MoleculeRows:
    """SMILES of a made-up combinatorial library: ring, linker, ring, and two substituents.

    The molecules are valid, and nothing else is claimed of them. A few are written in two ways.

    Raises:
        UserError: if the building blocks don't suffice.
    """
    cores = list(product(LEFT_RINGS, LINKERS, RIGHT_RINGS))
    pairs = list(product(SUBSTITUENTS, SUBSTITUENTS))
    if num_scaffolds > len(cores) or per_scaffold > len(pairs):
        raise UserError(
            f"num_scaffolds={num_scaffolds}, per_scaffold={per_scaffold}: the building blocks "
            f"make {len(cores)} scaffolds with {len(pairs)} members each. Lower one."
        )
    random = np.random.default_rng((seed, num_scaffolds, per_scaffold))
    smiles = []
    for core in random.permutation(len(cores))[:num_scaffolds]:
        left, linker, right = cores[core]
        for pair in random.permutation(len(pairs))[:per_scaffold]:
            smiles.append(left.format(*pairs[pair], linker + right))
    return MoleculeRows(smiles=smiles, source="scaffold library")


def substituent_keys(table: MoleculeTable) -> list[str]:
    """What hangs on each molecule's scaffold, as SMILES with * where it is attached."""
    chem = load("rdkit.Chem", "cutting off substituents")

    def cut(key: MoleculeKeys) -> str:
        scaffold = chem.MolFromSmiles(key.scaffold)
        rest = (
            chem.ReplaceCore(chem.MolFromSmiles(key.flat), scaffold) if key.scaffold else None
        )
        if rest is None:
            return ""
        for atom in rest.GetAtoms():
            atom.SetIsotope(0)  # which atom of the scaffold it was attached to
        return str(chem.MolToSmiles(rest))

    return [cut(key) for key in table.keys]


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedAssay:
    """Labels, and what they are made of."""

    labels: NDArray[np.float32]  # (n,)
    scaffold_share: float  # variance of the scaffold effects; the labels' is 1, up to noise
    group_keys: Sequence[str]

    def known_gap(self, *, folds: int = 5) -> float:
        """The leakage that was planted: see ``scaffold_effects.known_gap``."""
        return known_gap(self.scaffold_share, self.group_keys, folds=folds)

    def actives(self, fraction: float) -> NDArray[np.float32]:
        """The same assay as hits and misses: 1 for the highest ``fraction`` of labels."""
        return (self.labels > np.quantile(self.labels, 1 - fraction)).astype(np.float32)


def plant_assay(
    group_keys: Sequence[str],
    *,
    scaffold_share: float,
    substituents: Sequence[str] = (),
    substituent_share: float = 0.0,
    seed: int = 0,
) -> PlantedAssay:
    """An assay whose scaffold effect has exactly the variance ``scaffold_share``.

    Each scaffold has an effect of its own, and each substituent has one that it takes from
    scaffold to scaffold: the chemistry that a model should learn. Noise makes up the rest.

    Args:
        group_keys: the scaffold of each molecule.
        substituents: the substituent of each molecule, such as ``substituent_keys``.

    Raises:
        UserError: if the shares are more than the whole, or an effect has nothing to act on.
    """
    noise_share = 1 - scaffold_share - substituent_share
    if min(scaffold_share, substituent_share, noise_share) < 0:
        raise UserError(
            f"scaffold_share={scaffold_share}, substituent_share={substituent_share}: they are "
            "shares of a variance of 1, so both are positive and their sum is at most 1. Lower "
            "one."
        )
    random = np.random.default_rng((seed, len(group_keys)))
    labels = random.standard_normal(len(group_keys)) * np.sqrt(noise_share)
    for name, keys, share in (
        ("scaffold_share", group_keys, scaffold_share),
        ("substituent_share", substituents, substituent_share),
    ):
        if share:
            labels += _effect_of(keys, share, name, random)
    return PlantedAssay(
        labels=labels.astype(np.float32), scaffold_share=scaffold_share, group_keys=group_keys
    )


def _effect_of(
    keys: Sequence[str], share: float, name: str, random: np.random.Generator
) -> NDArray[np.float64]:
    """One normal draw for each different key, scaled so that its variance is ``share``."""
    names, places = np.unique(np.array(keys), return_inverse=True)
    if len(names) < 2:
        raise UserError(
            f"{name}={share}: all molecules have the same {name.partition('_')[0]}, so it "
            "can't make them differ. Use a more diverse table, or a share of 0."
        )
    effect = random.standard_normal(len(names))[places]
    return np.asarray((effect - effect.mean()) * (np.sqrt(share) / effect.std()))


# %%
def plant_twins(
    table: MoleculeTable, made: Split, share: float, *, seed: int = 0
) -> tuple[MoleculeRows, Parts]:
    """Give a known share of the test molecules a twin in train, as a careless merge does.

    Each twin is the hydrate of the molecule, written with its atoms in a random order: another
    text, another registration number, the same compound.

    Returns:
        All rows, originals first, and each row's part. Build a table of them with merge=False
        to see the leak, and with merging to see it go.
    """
    chem = load("rdkit.Chem", "writing SMILES in random order")
    tested = made.rows_of(TEST)
    random = np.random.default_rng((seed, len(tested)))
    chosen = random.permutation(tested)[: round(share * len(tested))]
    smiles = []
    for place in chosen:
        molecule = chem.MolFromSmiles(table.keys[place].smiles)
        drawn = chem.MolToRandomSmilesVect(molecule, 1, int(random.integers(2**31)))[0]
        smiles.append(f"{drawn}.O")
    rows = MoleculeRows(
        smiles=[*table.smiles, *smiles],
        labels=np.concatenate([table.labels, table.labels[chosen]]),
        tasks=table.tasks,
        source="table with twins",
    )
    parts = np.concatenate([made.parts, np.zeros(len(chosen), np.int8)])
    return rows, parts
